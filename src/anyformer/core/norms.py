"""Normalization and scaling of a token's features: layer norm, RMS norm (plain, and with weights that count from 1),
batch norm, layer scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings


@dataclass(frozen=True, kw_only=True)
class NormConfig(Settings):
    kind: Literal["layer", "rms", "rms_offset", "batch"] = "layer"
    eps: float = 1e-5
    bias: bool = True


class OffsetRMSNorm(nn.RMSNorm):
    """RMS norm that multiplies by 1 + weight, so that weights start at zero and decay towards the identity (Gemma)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        half = x.dtype in (torch.float16, torch.bfloat16)  # half precision would round 1 + weight
        wide, weight = (x.float(), self.weight.float()) if half else (x, self.weight)
        return F.rms_norm(wide, self.normalized_shape, 1 + weight, self.eps).to(x.dtype)


class MaskedBatchNorm1d(nn.BatchNorm1d):
    """Batch norm over all real tokens of the batch, so that a token's result depends on the other rows."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return super().forward(x.reshape(-1, x.shape[-1])).view_as(x)
        return torch.zeros_like(x).masked_scatter(mask.unsqueeze(-1), super().forward(x[mask]))


class LayerScale(nn.Module):
    """Multiplies every feature by a learned number with a small initial value (Touvron et al. 2021)."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.full((width,), start))

    def reset(self, std: float) -> None:
        nn.init.constant_(self.weight, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def make_norm(config: NormConfig, width: int) -> nn.Module:
    if config.kind == "layer":
        return nn.LayerNorm(width, eps=config.eps, bias=config.bias)
    if config.kind == "rms":
        return nn.RMSNorm(width, eps=config.eps)
    if config.kind == "rms_offset":
        return OffsetRMSNorm(width, eps=config.eps)
    return MaskedBatchNorm1d(width, eps=config.eps)


def apply_norm(norm: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Apply a norm; only batch norm uses the mask of real tokens."""
    result: Tensor = norm(x, mask) if isinstance(norm, MaskedBatchNorm1d) else norm(x)
    return result
