"""Attention maps of an image model: the last layer and rollout."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from anyformer.core.taps import look
from anyformer.model import Model

WEIGHTS = "encoder.blocks.*.self.weights"
POOL = "classify.gather.weights"  # of a head that pools the patches with its own query


def rollout(layers: Iterable[Tensor], raw: bool = False) -> Tensor:
    """Attention rollout [B, T, T] (Abnar and Zuidema 2020): the product over layers of attention weights [B, heads, T,
    T], averaged with the identity for the residual. `raw` leaves the identity out."""
    total: Tensor | None = None
    for weights in layers:
        step = weights.float().mean(dim=1)
        if not raw:
            step = 0.5 * step + 0.5 * torch.eye(step.shape[-1], device=step.device)
            step = step / step.sum(dim=-1, keepdim=True)
        total = step if total is None else step @ total
    assert total is not None, "layers is empty"
    return total


def class_attention(model: Model, batch: dict[str, Any], shape: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
    """Maps [B, rows, columns] of the last layer and of rollout, for the class token or the query of attention pooling.
    None if the model has neither with a grid of patches. `shape` are the rows and columns of pixels."""
    if not fnmatch.filter(model.points, WEIGHTS):
        return None
    pools = [POOL] if POOL in model.points else []
    with look(model, WEIGHTS, *pools) as seen:
        model(**batch)
    layers = [weights for point, weights in seen.log if point != POOL]
    rolled = rollout(layers)
    if pools:
        last = seen[POOL][:, 0].float()  # [B, 1, patches]
        return _maps(last[:, 0], (last @ rolled[:, -last.shape[-1] :])[:, 0], shape, (0, 1))
    return _maps(layers[-1].float().mean(dim=1)[:, 0], rolled[:, 0], shape, (1, 2))


def _maps(last: Tensor, rolled: Tensor, shape: tuple[int, int], spare: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
    """Token weights as maps of the image; `spare[0]` to `spare[1]` tokens before the patches (class and distillation
    tokens) are dropped."""
    cells = last.shape[-1]
    for rows in range(1, cells + 1):
        columns = round(rows * shape[1] / shape[0])
        if spare[0] <= cells - rows * columns <= spare[1] and columns:
            return tuple(one[:, one.shape[-1] - rows * columns :].view(-1, rows, columns) for one in (last, rolled))  # type: ignore[return-value]
    return None
