"""Convolutions that heads read an image's grid of tokens with."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.tokens import Tokens

SPREAD = 0.02  # of fresh filters


class SameConv2d(nn.Conv2d):
    """A convolution that keeps the size of the grid; small numbers at first."""

    def __init__(self, d_in: int, d_out: int, kernel: int, bias: bool = True, spread: float = SPREAD) -> None:
        super().__init__(d_in, d_out, kernel, padding=kernel // 2, bias=bias)
        self.spread = spread

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=self.spread)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Upsample2x(nn.ConvTranspose2d):
    """A transposed convolution that makes the grid twice as large."""

    def __init__(self, d_in: int, d_out: int, kernel: int = 2, bias: bool = True) -> None:
        super().__init__(d_in, d_out, kernel, stride=2, padding=(kernel - 2) // 2, bias=bias)

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=SPREAD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ConvNormReLU(nn.Module):
    """Convolution, batch norm, ReLU; `widen` makes the grid twice as large."""

    def __init__(self, d_in: int, d_out: int, kernel: int, widen: bool = False) -> None:
        super().__init__()
        kind = Upsample2x if widen else SameConv2d
        self.filter = kind(d_in, d_out, kernel, bias=False)
        self.norm = nn.BatchNorm2d(d_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.filter(x)))


def as_image_grid(tokens: Tokens) -> Tensor:
    """[B, 1 + cells or cells, d] -> [B, d, rows, columns]; a class token in front is left out."""
    assert tokens.grid is not None
    rows, columns = tokens.grid
    x = tokens.pad().x[:, -rows * columns :]
    return x.transpose(1, 2).unflatten(2, (rows, columns))


def resize(x: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)
