"""Tokens of a clip regrouped, so that attention looks along one axis at a time (Bertasius et al. 2021, §3).

The tokens are those that stand before all others (a class token, or none), then the cells of the image, each with all
of its frames side by side.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from anyformer.tokens import Tokens

AttentionAxis = Literal["all", "time", "space"]


def split_axis(tokens: Tokens, by: AttentionAxis) -> Tokens:
    """One row for each cell ("time"), without what stands before them; or one for each frame ("space"), each with a
    copy of that."""
    if by == "all":
        return tokens
    first, cells = _parts(tokens.x, tokens)
    if by == "time":
        return Tokens(cells.flatten(0, 1))
    batch, _, frames, width = cells.shape
    spread = first.unsqueeze(1).expand(batch, frames, -1, width)
    return Tokens(torch.cat([spread, cells.transpose(1, 2)], dim=2).flatten(0, 1), grid=tokens.grid)


def merge_axis(x: Tensor, tokens: Tokens, by: AttentionAxis) -> Tensor:
    """Back to the places in `tokens`: what stands before the cells gets nothing of "time", and the mean of "space"."""
    if by == "all":
        return x
    first, cells = _parts(tokens.x, tokens)
    batch, n_cells, frames, _ = cells.shape
    if by == "time":
        rest = x.reshape(batch, n_cells * frames, -1)
        return torch.cat([x.new_zeros(batch, first.shape[1], x.shape[-1]), rest], dim=1)
    rows = x.reshape(batch, frames, first.shape[1] + n_cells, -1)
    head, rest = rows[:, :, : first.shape[1]].mean(dim=1), rows[:, :, first.shape[1] :]
    return torch.cat([head, rest.transpose(1, 2).flatten(1, 2)], dim=1)


def _parts(x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """What stands first [B, n, d], and the cells [B, cells, frames, d]."""
    assert tokens.grid is not None and tokens.frames is not None and tokens.mask is None
    n = tokens.grid[0] * tokens.grid[1] * tokens.frames
    before = x.shape[1] - n
    return x[:, :before], x[:, before:].unflatten(1, (-1, tokens.frames))
