"""Small image stems for little data: residual convolutions, or patches.

They use group norm (Wu and He 2018), so that the result does not depend on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings


@dataclass(frozen=True, kw_only=True)
class ConvStemConfig(Settings):
    """Each stage halves the image and has `depths` residual blocks. With four stages a cell is 16 pixels wide."""

    n_channels: int = 3
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (0, 1, 2, 2)
    groups: int = 8

    def check(self) -> None:
        self.require(len(self.widths) == len(self.depths) > 0, "widths and depths must have one entry per stage each.")
        odd = [width for width in self.widths if width % self.groups]
        self.require(not odd, f"widths {odd} are not multiples of groups {self.groups}.")

    @property
    def d_out(self) -> int:
        return self.widths[-1]


class ConvGroupNorm(nn.Module):
    """3x3 convolution with group norm."""

    def __init__(self, d_in: int, d_out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(d_in, d_out, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(groups, d_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.filter(x))


class ConvResidual(nn.Module):
    """x + two convolutions of x."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.first, self.second = ConvGroupNorm(width, width, 1, groups), ConvGroupNorm(width, width, 1, groups)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class ConvStem(nn.Module):
    """[B, C, H, W] -> [B, d_out, H / 2^stages, W / 2^stages], rounded up."""

    def __init__(self, config: ConvStemConfig) -> None:
        super().__init__()
        self.config = config
        d_in = config.n_channels
        stages: list[nn.Module] = []
        for width, depth in zip(config.widths, config.depths, strict=True):
            around = [ConvResidual(width, config.groups) for _ in range(depth)]
            stages.append(nn.Sequential(ConvGroupNorm(d_in, width, 2, config.groups), nn.ReLU(), *around))
            d_in = width
        self.stages = nn.Sequential(*stages)

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.is_cuda:  # convolutions are faster in channels-last layout on GPU
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.stages(pixels)
        return features


class PatchEmbed(nn.Module):
    """ViT's patch embedding for images of any size: [B, C, H, W] -> [B, d, H / size, W / size]."""

    def __init__(self, n_channels: int, d_model: int, size: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(n_channels, d_model, size, size)

    def forward(self, pixels: Tensor) -> Tensor:
        size = self.filter.stride[0]
        right, below = -pixels.shape[3] % size, -pixels.shape[2] % size
        return self.filter(F.pad(pixels, (0, right, 0, below)) if right or below else pixels)
