"""What a model looked at in a picture: its class token's attention, in one layer or through all of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.core.taps import look
from anyformer.model import Model

WEIGHTS = "encoder.blocks.*.self.weights"


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Attention through all layers, [B, T, T]: each passes on what it attends to and, by its residual, itself, half and
    half (Abnar and Zuidema 2020). `layers` are weights [B, heads, T, T]."""
    total: Tensor | None = None
    for weights in layers:
        mean = weights.float().mean(dim=1)
        step = 0.5 * mean + 0.5 * torch.eye(mean.shape[-1], device=mean.device)
        step = step / step.sum(dim=-1, keepdim=True)
        total = step if total is None else step @ total
    assert total is not None, "no layers were given"
    return total


def class_attention(model: Model, batch: dict[str, Any], shape: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
    """What the first token attends to, [B, rows, columns], in the last layer and by rollout; None where a model has no
    such token before a grid of patches. `shape` are the rows and columns of pixels."""
    if not fnmatch.filter(model.points, WEIGHTS):
        return None
    with look(model, WEIGHTS) as seen:
        model(**batch)
    layers = [weights for _, weights in seen.log]
    cells = layers[-1].shape[-1]
    for rows in range(1, cells):
        columns = round(rows * shape[1] / shape[0])
        extra = cells - rows * columns
        if 1 <= extra <= 2:  # a class token, and perhaps one of distillation
            last = layers[-1].float().mean(dim=1)[:, 0, extra:]
            rolled = rollout(layers)[:, 0, extra:]
            return last.view(-1, rows, columns), rolled.view(-1, rows, columns)
    return None
