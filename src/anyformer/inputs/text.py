"""Text input: token ids to embeddings, with positions and, for pairs, token types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.host import host_copy, is_capturing
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Positions
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, to_bool_mask, to_square_mask
from anyformer.inputs.base import Input


class Embedding(nn.Embedding):
    """Embedding table; the padding id, if any, gets no gradient."""

    def __init__(self, n: int, width: int, padding: int | None = None) -> None:
        inside = padding is not None and -n <= padding < n  # it may lie outside of a reduced table
        super().__init__(n, width, padding_idx=padding if inside else None)

    def reset_parameters(self) -> None:
        """Draw weights as nn.Embedding does. Models are built on the meta device, and drawn by `initialize`."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=std)
        if self.padding_idx is not None:
            self.weight.data[self.padding_idx].zero_()


@dataclass(frozen=True, kw_only=True)
class TextInputConfig(Settings):
    vocab_size: int
    d_model: int
    prefix: str = ""  # "decoder_": reads decoder_input_ids etc.
    n_types: int = 0  # size of a table for token_type_ids
    types: Literal["none", "own", "shared"] = "none"  # "shared": GPT-2 uses the token embeddings for types
    position_ids: bool = True  # whether position_ids is accepted
    first_position: int = 0  # position of the first token
    padding_position: int | None = None  # position of padding tokens; None: their index
    scale: float = 1.0
    scale_inputs_embeds: bool = False  # whether inputs_embeds is scaled too
    norm: NormConfig | None = None
    dropout: float = 0.0
    padding: int | None = None
    alias: str | None = None  # another name of the ids (Perceiver: "inputs")
    embeds: bool = True  # whether inputs_embeds is accepted
    d_out: int | None = None  # width of a projection, if the stack's width differs
    combine: Literal["add", "concat"] = "add"  # positions; "concat": beside the token's vector, and projected back


class TextInput(Input):
    def __init__(self, config: TextInputConfig, positions: Positions | None = None) -> None:
        super().__init__()
        self.config = config
        self.words = Embedding(config.vocab_size, config.d_model, config.padding)
        self.types = Embedding(config.n_types, config.d_model) if config.types == "own" else None
        self.positions = positions
        if positions is not None and positions.max_positions is not None:
            self.limit = positions.max_positions - config.first_position
        joins = positions is not None and config.combine == "concat"
        self.join = Linear(2 * config.d_model, config.d_model) if joins else None
        self.norm = make_norm(config.norm, config.d_model) if config.norm is not None else None
        self.project = Linear(config.d_model, config.d_out) if config.d_out is not None else None
        self.read(config.prefix)

    def read(self, prefix: str) -> None:
        """Set the prefix of the batch's names: "decoder_" makes an encoder's input a decoder's."""
        config = self.config = self.config.replace(prefix=prefix)
        self.mask_name: str = f"{prefix}attention_mask"
        names = [f"{prefix}input_ids", self.mask_name]
        names += [f"{prefix}inputs_embeds"] if config.embeds else []
        names += [f"{prefix}token_type_ids"] if config.types != "none" else []
        names += [f"{prefix}position_ids"] if config.position_ids else []
        self.names = (*names, *([config.alias] if config.alias else []))

    def forward(self, run: ForwardContext) -> Tokens:
        x = self._vectors(run)
        batch, length = x.shape[:2]
        allowed = self._square_mask(run, batch, length)
        mask = self._real(run, batch, length) if allowed is None else None
        places = self._places(run, mask, length, x.device)
        tokens = Tokens(x, mask, places, documents=self._documents(run, places), allowed=allowed)
        x = self._add_types(run, x)
        encoding = None if self.positions is None else self.positions(tokens)
        if encoding is not None:
            x = x + encoding if self.join is None else self.join(torch.cat([x, encoding.expand_as(x)], dim=-1))
        if self.norm is not None:
            x = self.norm(x)
        x = F.dropout(x, self.config.dropout, self.training)
        return tokens.replace(x if self.project is None else self.project(x))

    def _square_mask(self, run: ForwardContext, batch: int, length: int) -> Tensor | None:
        """The mask of queries and keys, if the caller gives one."""
        given = run.tensor(self.mask_name)
        if given is None or given.dim() != 4:
            return None
        past = 0 if run.state is None else run.state.length
        return to_square_mask(given, batch, length, past, self.mask_name)

    def _real(self, run: ForwardContext, batch: int, length: int) -> Tensor | None:
        past = run.state.length if run.state is not None else 0
        given = run.tensor(self.mask_name)
        if given is not None and past and given.dim() == 2 and given.shape[1] == past + length:
            given = given[:, past:]  # transformers' mask includes the past
        return to_bool_mask(given, (batch, length), self.mask_name)

    def _vectors(self, run: ForwardContext) -> Tensor:
        prefix, config = self.config.prefix, self.config
        options = [f"{prefix}input_ids"] + ([f"{prefix}inputs_embeds"] if config.embeds else [])
        name, value = run.require_one(*options, *([config.alias] if config.alias else []))
        if name.endswith("inputs_embeds"):
            if value.dim() != 3 or value.shape[2] != config.d_model:
                raise InputError(f"{name} has shape {list(value.shape)}; it must be [batch, tokens, {config.d_model}].")
            return value * config.scale if config.scale_inputs_embeds else value
        check_ids(value, config.vocab_size, name, run.training)
        vectors = self.words(value)
        return vectors if config.scale == 1.0 else vectors * config.scale

    def _places(self, run: ForwardContext, mask: Tensor | None, length: int, device: torch.device) -> Tensor | None:
        """Positions count real tokens only, so that left padding, right padding and no padding agree."""
        given = run.tensor(f"{self.config.prefix}position_ids") if self.config.position_ids else None
        if given is not None:
            return given.view(-1, length) if given.dim() == 1 else given
        start = run.state.num_tokens() - run.state.uncounted if run.state is not None else 0
        first, aside = self.config.first_position, self.config.padding_position
        if mask is None and isinstance(start, int):
            start += first
            return torch.arange(start, start + length, device=device).unsqueeze(0) if start else None
        if mask is None and isinstance(start, Tensor):
            return start + first if length == 1 else start + torch.arange(first, first + length, device=device)
        assert mask is not None
        places = torch.where(mask, mask.cumsum(dim=1) - 1, torch.arange(length, device=device)) + start + first
        return places if aside is None else places.masked_fill(~mask, aside)

    def _documents(self, run: ForwardContext, places: Tensor | None) -> Tensor | None:
        """Return each token's text number, from 0, if restarting `position_ids` pack several texts into a row.

        As in transformers: only without a mask and a cache, and not in the decoder of an encoder-decoder. None if every
        row is one text.
        """
        asked = self.config.position_ids and not self.config.prefix and run.tensor("position_ids") is not None
        if not asked or places is None or run.tensor(self.mask_name) is not None or run.state is not None:
            return None
        jumps = F.pad(places.diff(dim=1) != 1, (1, 0))
        if not is_capturing(places) and not bool(host_copy((places == 0) | ~jumps).all()):
            return None  # the caller's positions: a new text begins at 0
        numbers = jumps.cumsum(dim=1)
        return numbers if is_capturing(places) or bool(host_copy(numbers).any()) else None

    def _add_types(self, run: ForwardContext, x: Tensor) -> Tensor:
        if self.config.types == "none":
            return x
        name = f"{self.config.prefix}token_type_ids"
        ids = run.tensor(name)
        if ids is not None:
            size = self.config.vocab_size if self.types is None else self.config.n_types
            check_ids(ids, size, name, run.training)
        if self.types is None:
            return x if ids is None else x + self.words(ids.view(x.shape[:2]))
        return x + self.types(torch.zeros(1, dtype=torch.long, device=x.device) if ids is None else ids)


def check_ids(ids: Tensor, vocab_size: int, name: str, training: bool) -> None:
    """Raise a clear error for invalid ids, instead of an index error, or a failed assertion on GPU.

    On GPU this synchronizes, so training, whose data was checked on the host, skips it.
    """
    if ids.dim() != 2:
        raise InputError(f"{name} has shape {list(ids.shape)}; it must be [batch, tokens].")
    if ids.is_floating_point():
        raise InputError(f"{name} must hold integers; its dtype is {ids.dtype}.")
    if ids.numel() == 0 or (ids.is_cuda and training) or is_capturing(ids):
        return
    low, high = torch.stack(ids.aminmax()).tolist()  # one synchronization for both
    if low < 0 or high >= vocab_size:
        worst = low if low < 0 else high
        raise InputError(f"{name} holds {worst}, but the vocabulary has {vocab_size} tokens (0 to {vocab_size - 1}).")
