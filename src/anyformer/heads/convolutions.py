"""Convolutions of heads that read an image's token grid."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.layers.resnet import ConvNormAct

SPREAD = 0.02  # standard deviation at initialization


class SameConv2d(nn.Conv2d):
    """A convolution that keeps the grid size, with small initial weights."""

    def __init__(self, d_in: int, d_out: int, kernel: int, bias: bool = True, spread: float = SPREAD) -> None:
        super().__init__(d_in, d_out, kernel, padding=kernel // 2, bias=bias)
        self.spread = spread

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=self.spread)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Upsample2x(nn.ConvTranspose2d):
    """A transposed convolution that doubles the grid size."""

    def __init__(self, d_in: int, d_out: int, kernel: int = 2, bias: bool = True) -> None:
        super().__init__(d_in, d_out, kernel, stride=2, padding=(kernel - 2) // 2, bias=bias)

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=SPREAD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def conv_norm_relu(d_in: int, d_out: int, kernel: int, widen: bool = False) -> ConvNormAct:
    """Convolution, batch norm, ReLU; `widen` doubles the grid size."""
    kind = Upsample2x if widen else SameConv2d
    return ConvNormAct(kind(d_in, d_out, kernel, bias=False), nn.BatchNorm2d(d_out), "relu")


def resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)
