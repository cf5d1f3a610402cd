"""Numbers made small enough to be drawn: whole where they are few, in tiles or pooled where they are many, and in 16
bits."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 128  # cells of a grid that are drawn at once
THUMB = 48  # and of a small one
LEVELS = 65535
QUERIES = 256  # of a long text, by which a head's figures are worked out


def pack(values: Tensor) -> dict[str, Any]:
    """Any tensor in 16 bits between its least and its largest value: the error is under a 130,000th of the range."""
    values = values.detach().double().cpu()
    low, high = (float(values.min()), float(values.max())) if values.numel() else (0.0, 0.0)
    span = high - low
    scaled = (values - low) / span * LEVELS if span > 0 else torch.zeros_like(values)
    content = scaled.round().to(torch.int32).numpy().astype("<u2").tobytes()
    return {"shape": list(values.shape), "low": low, "high": high, "u16": base64.b64encode(content).decode()}


def numbers(values: Tensor, digits: int = 6) -> Any:
    """Nested lists of numbers with so many digits that count; what is not finite becomes None."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None

    return plain(values.detach().double().cpu().tolist())


def pooled(weights: Tensor, side: int) -> Tensor:
    """[…, Q, K] with at most `side` rows and columns: each cell is the largest weight that it stands for, so that a
    thin line is not lost."""
    rows, columns = (min(size, side) for size in weights.shape[-2:])
    if (rows, columns) == tuple(weights.shape[-2:]):
        return weights
    flat = weights.reshape(-1, 1, *weights.shape[-2:])
    return F.adaptive_max_pool2d(flat.float(), (rows, columns)).view(*weights.shape[:-2], rows, columns)


def tile(weights: Tensor, top: int, left: int) -> dict[str, Any]:
    """The part of [Q, K] from a corner on that is drawn at once; where that is not all, the whole small beside it."""
    top = min(top, max(weights.shape[-2] - SIDE, 0))
    left = min(left, max(weights.shape[-1] - SIDE, 0))
    part = weights[..., top : top + SIDE, left : left + SIDE]
    found = {"top": top, "left": left, "of": list(weights.shape[-2:]), "cells": pack(part)}
    return found if part.shape == weights.shape else {**found, "overview": pack(pooled(weights, SIDE))}


def strongest(row: Tensor, most: int = SIDE) -> dict[str, Any]:
    """The largest of a row of weights [K], where they stand, and how much the others have together."""
    values, places = row.topk(min(most, len(row)))
    order = places.argsort()
    rest = max(float(row.sum() - values.sum()), 0.0)
    return {"places": places[order].tolist(), "values": numbers(values[order]), "rest": rest}


def some(weights: Tensor) -> tuple[Tensor, Tensor]:
    """[H, Q, K] of all queries, or of at most so many, evenly spread; and which they are."""
    chosen = torch.arange(0, weights.shape[-2], math.ceil(weights.shape[-2] / QUERIES))
    return (weights if len(chosen) == weights.shape[-2] else weights[:, chosen]).float(), chosen


def entropy(weights: Tensor) -> Tensor:
    """[H, Q, K] -> [H]: how spread each head's attention is, in bits, the mean over its queries."""
    exact, _ = some(weights)
    each = -torch.special.xlogy(exact, exact).sum(dim=-1) / math.log(2)
    real = exact.sum(dim=-1) > 0.5
    return (each * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1)


def distance(weights: Tensor) -> Tensor:
    """[H, Q, K] -> [H]: how many tokens away each head looks, on average."""
    exact, query = some(weights)
    apart = (query[:, None] - torch.arange(weights.shape[-1])).abs().float()
    each = (exact * apart).sum(dim=-1)
    real = exact.sum(dim=-1) > 0.5
    return (each * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1)
