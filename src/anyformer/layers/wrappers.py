"""Wrappers of a layer, a sublayer or a stack that only one or two families use. Each has the interface of what it
wraps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.attention import Attention
from anyformer.core.block import Sublayer
from anyformer.core.cache import PAST, Cache
from anyformer.core.linear import Linear
from anyformer.core.norms import apply_norm
from anyformer.core.stack import Stack
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.core.wrapper import Wrapper


class ContextNorm(Wrapper):
    """Cross-attention that normalizes its context (Perceiver)."""

    attention: Attention
    crosses = True

    def __init__(self, attention: Attention, norm: nn.Module) -> None:
        super().__init__()
        self.context_norm = norm
        self.wrap("attention", attention)

    def forward(self, tokens: Tokens, memory: Tokens, cache: Cache | None = None) -> Tensor:
        normed = memory.replace(apply_norm(self.context_norm, memory.x, memory.mask))
        return self.attention(tokens, normed, cache)


class SegmentRecurrence(Wrapper):
    """Self-attention that also attends to its last `length` inputs, without gradients (Transformer-XL)."""

    attention: Attention
    crosses = False

    def __init__(self, attention: Attention, length: int) -> None:
        super().__init__()
        self.length = length
        self.wrap("attention", attention)

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        if cache is None:
            return self.attention(tokens)
        entry = cache.recurrent(self.attention.taps.name(self.attention))
        inputs = torch.cat([entry.get(PAST, tokens.x[:, :0]), tokens.x], dim=1)  # [B, past + T, d]
        entry[PAST] = inputs[:, max(inputs.shape[1] - self.length, 0) :].detach()
        return self.attention(tokens, None, cache, Tokens(inputs))


class AttentionOverTime(Wrapper):
    """Attention among the frames of each cell of a clip; tokens before the cells get zeros (TimeSformer)."""

    attention: Attention
    crosses = False
    axis = "time"

    def __init__(self, attention: Attention, project: Linear) -> None:
        super().__init__()
        self.wrap("attention", attention)
        self.project = project

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        first, cells = split_cells(tokens)
        y = self.project(self.attention(Tokens(cells.flatten(0, 1))))
        return torch.cat([torch.zeros_like(first), y.view(cells.shape).flatten(1, 2)], dim=1)


class AttentionOverSpace(Wrapper):
    """Attention among the cells of each frame of a clip. Tokens before the cells join every frame, and their results
    are averaged over the frames (TimeSformer)."""

    attention: Attention
    crosses = False
    axis = "space"

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.wrap("attention", attention)

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        first, cells = split_cells(tokens)
        batch, _, frames, width = cells.shape
        spread = first.unsqueeze(1).expand(batch, frames, -1, width)
        rows = torch.cat([spread, cells.transpose(1, 2)], dim=2).flatten(0, 1)  # [B·frames, n + cells, d]
        y = self.attention(Tokens(rows, grid=None if tokens.grid is None else tokens.grid[:2]))
        y, n = y.unflatten(0, (batch, frames)), first.shape[1]
        return torch.cat([y[:, :, :n].mean(dim=1), y[:, :, n:].transpose(1, 2).flatten(1, 2)], dim=1)


def split_cells(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """The tokens before the cells [B, n, d], and the cells [B, cells, frames, d] of a (rows, columns, frames) grid."""
    assert tokens.grid is not None and tokens.mask is None
    rows, columns, frames = tokens.grid
    n = tokens.x.shape[1] - rows * columns * frames
    return tokens.x[:, :n], tokens.x[:, n:].unflatten(1, (-1, frames))


class NoResidual(Sublayer):
    """A sublayer without a residual connection (Perceiver's decoder)."""

    def add(self, tokens: Tokens, y: Tensor) -> Tokens:
        return tokens.replace(y)


class ScaledResidual(Sublayer):
    """A sublayer whose sum is scaled by √½, which keeps the variance (ConvS2S, §3.1)."""

    def add(self, tokens: Tokens, y: Tensor) -> Tokens:
        return tokens.replace((tokens.x + y) * 0.5**0.5)


class RecurrentBlock(nn.Module):
    """A recurrent layer used as a block, without norm or residual connection."""

    tap_points = ("output",)

    def __init__(self, name: str, part: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.add_module(name, part)
        self.name, self.dropout, self.taps = name, dropout, NO_TAPS

    @property
    def part(self) -> nn.Module:
        return cast("nn.Module", self._modules[self.name])

    @property
    def crosses(self) -> bool:
        return bool(self.part.crosses)

    @property
    def sublayers(self) -> dict[str, RecurrentBlock]:
        """The block as a dict of one sublayer."""
        return {self.name: self}

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tokens:
        made = self.part(tokens, memory, cache)
        made = made if isinstance(made, Tokens) else tokens.replace(made)  # an encoder returns its last states too
        if self.training and self.dropout:
            made = made.replace(F.dropout(made.x, self.dropout))
        return self.taps.record_tokens("output", made)


class NormedStack(Stack):
    """A stack that applies the final norm after every block too, for the auxiliary losses of DETR."""

    def after_block(self, tokens: Tokens) -> Tokens:
        return super().finish(tokens)


class FinalDropoutStack(Stack):
    """A stack with dropout after its final norm (T5)."""

    def __init__(self, *args: object, final_dropout: float = 0.0, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.final_dropout = final_dropout

    def finish(self, tokens: Tokens) -> Tokens:
        tokens = super().finish(tokens)
        if not (self.training and self.final_dropout):
            return tokens
        return tokens.replace(F.dropout(tokens.x, self.final_dropout))


class RefiningStack(NormedStack):
    """A stack whose queries are boxes that every block refines (DAB-DETR, Liu et al. 2022). The boxes are the tokens'
    `positions` [B, n, 4], as logits; `place` turns them into the vectors that attention adds to queries and keys."""

    def __init__(self, blocks: Sequence[nn.Module], final_norm: nn.Module, step: nn.Module, place: nn.Module) -> None:
        super().__init__(blocks, final_norm)
        self.step, self.place = step, place

    def forward(  # type: ignore[override]
        self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None
    ) -> tuple[Tokens, list[Tokens]]:
        assert tokens.positions is not None
        hidden: list[Tokens] = []
        recompute = self.recomputes(cache)
        tokens = tokens._replace(pos_embed=self.place(tokens.positions.sigmoid(), tokens.x.dtype))
        for index in self.order:
            block = self.blocks[index]
            made = self.recomputed(block, tokens, memory) if recompute else block(tokens, memory, cache)
            normed = self.after_block(made)
            last = self.finish(normed) if len(hidden) == len(self.order) - 1 else normed
            boxes = cast("Tensor", tokens.positions).detach() + self.step(last.x).float()
            placed = self.place(boxes.detach().sigmoid(), last.x.dtype)
            tokens = last._replace(positions=boxes, pos_embed=placed)
            hidden.append(normed._replace(positions=boxes, pos_embed=placed))
        return tokens, hidden
