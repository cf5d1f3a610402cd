"""Normalisations of a token's features: layer, RMS and, for the lectures' comparison, batch norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from anyformer.config import Settings


@dataclass(frozen=True, kw_only=True)
class NormConfig(Settings):
    kind: Literal["layer", "rms", "batch"] = "layer"
    eps: float = 1e-5
    bias: bool = True


class BatchNorm(nn.BatchNorm1d):
    """Each feature normalised over all real tokens of the batch, so a token's result depends on its neighbours."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return super().forward(x.reshape(-1, x.shape[-1])).view_as(x)
        return torch.zeros_like(x).masked_scatter(mask.unsqueeze(-1), super().forward(x[mask]))


def make_norm(config: NormConfig, width: int) -> nn.Module:
    if config.kind == "layer":
        return nn.LayerNorm(width, eps=config.eps, bias=config.bias)
    if config.kind == "rms":
        return nn.RMSNorm(width, eps=config.eps)
    return BatchNorm(width, eps=config.eps)


def normalise(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Only batch norm must know which tokens are real."""
    result: Tensor = norm(x, mask) if isinstance(norm, BatchNorm) else norm(x)
    return result
