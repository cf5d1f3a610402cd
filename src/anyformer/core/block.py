"""A block is an ordered list of residual sublayers. Every transformer is such a list.

Original decoder:  self, cross, feedforward, each normalized after ("post")
GPT-2:             self, feedforward, each normalized before ("pre")
GPT-NeoX:          the same two, side by side (parallel)
Mamba:             a state-space layer alone

    Block({"self": Sublayer(Attention(...), LayerNorm(d)), "feedforward": Sublayer(FeedForward(...), LayerNorm(d))})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.cache import Cache
from anyformer.core.norms import LayerScale, apply_norm
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.core.wrapper import Wrapper
from anyformer.errors import ConfigError

NormOrder = Literal["pre", "post", "sandwich"]


class Sublayer(Wrapper):
    """A part with its norms, dropout and residual connection.

    A part is a module (tokens, memory, cache) -> Tensor: Attention, FeedForward, a layer of anyformer.layers. One that
    `crosses` reads the memory. Calling the sublayer returns the part's contribution; `add` adds it to the residual
    stream.
    """

    part: nn.Module

    def __init__(
        self,
        part: nn.Module,
        norm: nn.Module | None = None,
        *,
        order: NormOrder = "pre",
        post_norm: nn.Module | None = None,  # the second norm of a sandwich
        dropout: float = 0.0,
        drop_path: float = 0.0,  # fraction of rows that skip the part in training (Huang et al. 2016)
        layer_scale: LayerScale | None = None,
    ) -> None:
        super().__init__()
        self.norm, self.post_norm = norm, post_norm
        self.order, self.dropout, self.drop_path = order, dropout, drop_path
        self.wrap("part", part)
        self.layer_scale = layer_scale

    @property
    def crosses(self) -> bool:
        return bool(self.part.crosses)

    def forward(
        self, tokens: Tokens | Tensor, memory: Tokens | Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """The part's contribution to the residual stream, [B, T, d]. Plain vectors can be passed instead of tokens."""
        tokens = tokens if isinstance(tokens, Tokens) else Tokens(tokens)
        return self.finish(self.part(self.read(tokens), memory, cache), tokens)

    def read(self, tokens: Tokens) -> Tokens:
        """The part's input."""
        if self.norm is None or self.order == "post":
            return tokens
        return tokens.replace(apply_norm(self.norm, tokens.x, tokens.mask))

    def finish(self, y: Tensor, tokens: Tokens) -> Tensor:
        """Post-process the part's result before it is added."""
        if self.post_norm is not None:
            y = apply_norm(self.post_norm, y, tokens.mask)
        if self.training:
            y = F.dropout(y, self.dropout)
        if self.layer_scale is not None:
            y = self.layer_scale(y)
        return drop_path(y, self.drop_path, tokens) if self.training else y

    def add(self, tokens: Tokens, y: Tensor) -> Tokens:
        """The residual stream with the contribution added."""
        x = tokens.x + y
        if self.order == "post" and self.norm is not None:
            x = apply_norm(self.norm, x, tokens.mask)
        return tokens.replace(x)


def drop_path(y: Tensor, rate: float, tokens: Tokens) -> Tensor:
    """Stochastic depth: zero whole rows at this rate, and scale the others up."""
    if not rate:
        return y
    batch = y.shape[0] if tokens.packing is None else tokens.packing.batch
    keep = (torch.rand(batch, device=y.device) >= rate).to(y.dtype) / (1 - rate)
    return y * (keep[:, None, None] if tokens.packing is None else keep[tokens.packing.rows, None])


class Block(nn.Module):
    """Sublayers by name, such as "self", "cross" and "feedforward": the names of their parameters and taps too.

    With `parallel`, all sublayers read the block's input, and their results are added at once.
    """

    tap_points = ("output",)

    def __init__(self, sublayers: Mapping[str, Sublayer], parallel: bool = False) -> None:
        super().__init__()
        if parallel and any(sublayer.order == "post" for sublayer in sublayers.values()):
            raise ConfigError("Parallel sublayers cannot be normalized after the sum.")
        for name, sublayer in sublayers.items():
            self.add_module(name, sublayer)
        self.parallel, self.taps = parallel, NO_TAPS

    @property
    def sublayers(self) -> dict[str, Sublayer]:
        return cast("dict[str, Sublayer]", self._modules)

    def active(self, memory: Tokens | None) -> list[Sublayer]:
        """The sublayers to run. Cross-attention is skipped if there is no memory (GPT-2 with cross-attention)."""
        return [sublayer for sublayer in self.sublayers.values() if memory is not None or not sublayer.crosses]

    def forward(
        self, tokens: Tokens | Tensor, memory: Tokens | Tensor | None = None, cache: Cache | None = None
    ) -> Tokens:
        """The tokens after all sublayers; given plain vectors [B, T, d], vectors."""
        memory = Tokens.of(memory)
        if isinstance(tokens, Tensor):
            return self(Tokens(tokens), memory, cache).x
        if self.parallel:
            tokens = tokens.replace(tokens.x + sum(sublayer(tokens, memory, cache) for sublayer in self.active(memory)))
        else:
            for sublayer in self.active(memory):
                tokens = sublayer.add(tokens, sublayer(tokens, memory, cache))
        return self.taps.record_tokens("output", tokens)
