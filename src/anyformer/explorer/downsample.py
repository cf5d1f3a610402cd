"""Reduce tensors for the page: crop or pool large ones, and quantize values to 16 bits."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 128  # maximum rows and columns of a matrix
THUMB = 48  # and of a thumbnail
LEVELS = 65535
QUERIES = 256  # maximum queries for entropy and distance


def pack(values: Tensor) -> dict[str, Any]:
    """Quantize a tensor to 16 bits between its minimum and maximum (error below 1/130,000 of the range)."""
    values = values.detach().cpu().double()
    low, high = (float(values.min()), float(values.max())) if values.numel() else (0.0, 0.0)
    span = high - low
    scaled = (values - low) / span * LEVELS if span > 0 else torch.zeros_like(values)
    content = scaled.round().to(torch.int32).numpy().astype("<u2").tobytes()
    return {"shape": list(values.shape), "low": low, "high": high, "u16": base64.b64encode(content).decode()}


def numbers(values: Tensor, digits: int = 6) -> Any:
    """Nested lists of numbers, rounded to `digits` significant digits; NaN and infinities become None."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None

    return plain(values.detach().cpu().double().tolist())


def pooled(weights: Tensor, side: int) -> Tensor:
    """Max-pool [..., queries, keys] to at most `side` rows and columns, so that thin lines stay visible."""
    rows, columns = (min(size, side) for size in weights.shape[-2:])
    if (rows, columns) == tuple(weights.shape[-2:]):
        return weights
    flat = weights.reshape(-1, 1, *weights.shape[-2:])
    return F.adaptive_max_pool2d(flat.float(), (rows, columns)).view(*weights.shape[:-2], rows, columns)


def tile(weights: Tensor, top: int, left: int) -> dict[str, Any]:
    """The part of [queries, keys] at a corner; with an overview of the whole matrix if it is larger."""
    top = min(top, max(weights.shape[-2] - SIDE, 0))
    left = min(left, max(weights.shape[-1] - SIDE, 0))
    part = weights[..., top : top + SIDE, left : left + SIDE]
    found = {"top": top, "left": left, "of": list(weights.shape[-2:]), "cells": pack(part)}
    return found if part.shape == weights.shape else {**found, "overview": pack(pooled(weights, SIDE))}


def strongest(row: Tensor, most: int = SIDE) -> dict[str, Any]:
    """The largest weights of a row [keys], their positions, and the sum of the remaining weights."""
    values, places = row.topk(min(most, len(row)))
    order = places.argsort()
    rest = max(float(row.sum() - values.sum()), 0.0)
    return {"places": places[order].tolist(), "values": numbers(values[order]), "rest": rest}


def some(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [heads, queries, keys] of at most QUERIES evenly spaced queries, and their indices."""
    chosen = torch.arange(0, weights.shape[-2], math.ceil(weights.shape[-2] / QUERIES))
    return (weights if len(chosen) == weights.shape[-2] else weights[:, chosen]).float(), chosen


def entropy(weights: Tensor) -> Tensor:
    """Entropy of each head in bits, averaged over queries: [heads, queries, keys] -> [heads]."""
    exact, _ = some(weights)
    each = -torch.special.xlogy(exact, exact).sum(dim=-1) / math.log(2)
    real = exact.sum(dim=-1) > 0.5
    return (each * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1)


def distance(weights: Tensor) -> Tensor:
    """Mean distance in tokens between query and key: [heads, queries, keys] -> [heads]."""
    exact, query = some(weights)
    apart = (query[:, None] - torch.arange(weights.shape[-1])).abs().float()
    each = (exact * apart).sum(dim=-1)
    real = exact.sum(dim=-1) > 0.5
    return (each * real).sum(dim=-1) / real.sum(dim=-1).clamp(min=1)
