"""Sequences of tokens taken apart and put together, as inputs do: some tokens of each row, and several in a row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.core.tokens import Tokens


def take(tokens: Tokens, index: Tensor) -> Tokens:
    """Select tokens of each row, in the order given by index [B, K] (MAE drops most patches)."""

    def pick(field: Tensor | None) -> Tensor | None:
        if field is None:
            return None
        field = field.expand(index.shape[0], *field.shape[1:])
        return field.gather(1, index.view(*index.shape, *[1] * (field.dim() - 2)).expand(-1, -1, *field.shape[2:]))

    x = pick(tokens.x)
    assert x is not None
    return Tokens(x, pick(tokens.mask), pick(tokens.positions), pick(tokens.pos_embed))


def restore(x: Tensor, index: Tensor, fill: Tensor) -> Tensor:
    """Undo `take` for vectors [B, K, d]: `index` [B, T] is the index of the kept token for each position; beyond the
    kept ones it means `fill` [d]."""
    batch, kept, width = x.shape
    missing = fill.expand(batch, index.shape[1] - kept, width).to(x.dtype)
    return torch.cat([x, missing], dim=1).gather(1, index.unsqueeze(-1).expand(-1, -1, width))


def concat(pieces: Sequence[Tokens]) -> Tokens:
    """Concatenate sequences of the same batch (a class token and patches, an image and a text)."""
    batch = next((piece.x.shape[0] for piece in pieces if piece.x.shape[0] != 1), 1)

    def whole(field: str, default: object) -> Tensor | None:
        values = [getattr(piece, field) for piece in pieces]
        if all(value is None for value in values):
            return None
        filled = [
            value if value is not None else torch.full(piece.x.shape[:2], default, device=piece.x.device)  # type: ignore[call-overload]
            for value, piece in zip(values, pieces, strict=True)
        ]
        return torch.cat([value.expand(batch, *value.shape[1:]) for value in filled], dim=1)

    x = torch.cat([piece.x.expand(batch, -1, -1) for piece in pieces], dim=1)
    return Tokens(x, whole("mask", True), whole("positions", 0), spans=whole("spans", -1))
