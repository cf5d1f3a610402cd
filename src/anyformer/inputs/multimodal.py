"""Text with embeddings of other stages at placeholder tokens, projected to the text's width (Hao et al. 2022). Images
and text may alternate in any order.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anyformer.core.host import is_capturing
from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input
from anyformer.inputs.text import TextInput, check_ids

BIDIRECTIONAL = "both_ways"


class MultimodalInput(Input):
    """`projectors`: stage -> (the placeholder id, the width of the stage's vectors).

    Each run of placeholders attends in both directions; `both_ways` [batch, tokens] marks text tokens that do so too (a
    question before its answer). All other attention is causal.
    """

    asides = (BIDIRECTIONAL,)

    def __init__(self, text: TextInput, projectors: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self.text, self.limit, self.mask_name = text, text.limit, text.mask_name
        self.places = {name: token for name, (token, _) in projectors.items()}
        self.connect = nn.ModuleDict(
            {name: Linear(width, text.config.d_model) for name, (_, width) in projectors.items()}
        )
        self.names = (*(name for name in text.names if not name.endswith("inputs_embeds")), BIDIRECTIONAL)

    @property
    def words(self) -> nn.Module:
        return self.text.words

    def forward(self, run: ForwardContext) -> Tokens:
        _, ids = run.require_one("input_ids")
        check_ids(ids, self.text.config.vocab_size, "input_ids", run.training)
        vectors = self.text.words(ids) * self.text.config.scale
        marks, mask = self._given(run, ids), run.tensor("attention_mask")
        real = mask.to(torch.bool) if mask is not None and mask.shape == ids.shape else torch.ones_like(marks)
        for name, token in self.places.items():
            here = (ids == token) & real
            if run.state is None or not run.state.length or ids.shape[1] > 1:
                vectors = self._dock(run, name, here, vectors)
                marks = marks | here
        inner = ForwardContext({**run.batch, "inputs_embeds": vectors, "input_ids": None}, run.state, run.training)
        tokens: Tokens = self.text(inner)
        if ids.shape[1] == 1:
            return tokens
        return Tokens(tokens.x, tokens.mask, tokens.positions, spans=run_numbers(marks))

    def _given(self, run: ForwardContext, ids: Tensor) -> Tensor:
        given = run.tensor(BIDIRECTIONAL)
        if given is None:
            return torch.zeros_like(ids, dtype=torch.bool)
        if given.shape != ids.shape:
            raise InputError(
                f"{BIDIRECTIONAL} has shape {list(given.shape)}; it must be {list(ids.shape)}, the shape of input_ids."
            )
        return given.to(torch.bool)

    def _dock(self, run: ForwardContext, name: str, here: Tensor, vectors: Tensor) -> Tensor:
        made = run.tokens.get(name)
        if made is None or (run.state is not None and run.state.length):
            if not is_capturing(here) and bool(here.any()):
                raise InputError(f"input_ids has {int(here.sum())} placeholder tokens for {name}, but none was given.")
            return vectors
        soft = self.connect[name](made.pad().x)
        if not is_capturing(here) and not (here.is_cuda and run.training):
            self._check(name, here, soft)
        return scatter_rows(vectors, here, soft.flatten(0, 1).to(vectors.dtype))

    def _check(self, name: str, here: Tensor, soft: Tensor) -> None:
        places, size = here.sum(dim=1), soft.shape[1]
        if int(places.sum()) != soft.shape[0] * size or bool((places % size != 0).any()):
            raise InputError(
                f"input_ids has {places.tolist()} placeholder tokens for {name}, but {soft.shape[0]} {name} inputs"
                f" need {size} each."
            )


def scatter_rows(vectors: Tensor, here: Tensor, made: Tensor) -> Tensor:
    """Write the rows of `made` [n, d] in order to the True positions [B, T] of `vectors` [B, T, d]. Like
    masked_scatter, whose gradient would synchronize the GPU.
    """
    if not len(made):
        return vectors
    number = (here.flatten().cumsum(dim=0) - 1).clamp(0, len(made) - 1)
    return torch.where(here.unsqueeze(-1), made.index_select(0, number).view_as(vectors), vectors)


def run_numbers(marks: Tensor) -> Tensor:
    """[B, T] of flags -> the index of each token's run of True, -1 outside.  0 1 1 0 1 -> -1 0 0 -1 1"""
    before = torch.cat([torch.zeros_like(marks[:, :1]), marks[:, :-1]], dim=1)
    number = (marks & ~before).long().cumsum(dim=1) - 1
    return number.masked_fill(~marks, -1)
