"""ResNet backbone (He et al. 2016) that turns an image into a feature grid, and inputs built on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.taps import NO_TAPS
from anyformer.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(Settings):
    block: Literal["basic", "bottleneck"] = "bottleneck"
    n_channels: int = 3
    d_stem: int = 64
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    activation: str = "relu"
    downsample_in_first_stage: bool = False  # stride 2 in the first stage too
    downsample_in_bottleneck: bool = False  # a bottleneck's stride is in its first convolution, not its second
    stem: Literal["large", "small"] = "large"  # 7x7 with stride 2 and pooling; or 3x3, for 32 x 32 images
    norm: Literal["frozen", "batch"] = "frozen"  # "batch" is trained and uses batch statistics
    dilation: bool = False  # DC5: the last stage uses dilation instead of a stride
    n_stages: int | None = None  # number of stages to run; 0: only the stem

    def check(self) -> None:
        self.require(len(self.widths) == len(self.depths), "widths and depths must have one entry per stage each.")
        known = ", ".join(ACTIVATIONS)
        self.require(self.activation in ACTIVATIONS, f'activation is "{self.activation}"; it must be one of {known}.')

    @property
    def used(self) -> int:
        return len(self.depths) if self.n_stages is None else self.n_stages

    @property
    def reduction(self) -> int:
        """Stride of the feature grid in pixels."""
        strides = [2 if self.downsample_in_first_stage else 1, *[2] * (len(self.depths) - 1)]
        strides[-1] = 1 if self.dilation else strides[-1]
        return int((4 if self.stem == "large" else 1) * math.prod(strides[: self.used]))

    @property
    def d_out(self) -> int:
        return (self.d_stem, *self.widths)[self.used]


class FreezableBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization; `frozen` uses stored statistics and scale, which are buffers and not trained."""

    def __init__(self, width: int, frozen: bool) -> None:
        super().__init__(width)
        self.frozen = frozen
        if frozen:
            for name in ("weight", "bias"):
                values = getattr(self, name).data
                delattr(self, name)
                self.register_buffer(name, values)
            self.num_batches_tracked = None
            self.training = False

    def reset_running_stats(self) -> None:
        for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
            if self._buffers[name] is not None:
                self.get_buffer(name).fill_(value)

    def train(self, mode: bool = True) -> Self:
        return super().train(mode and not self.frozen)


class ConvNormAct(nn.Module):
    def __init__(
        self,
        sizes: tuple[int, int],
        kernel: int,
        frozen: bool,
        stride: int = 1,
        dilation: int = 1,
        activation: str = "linear",
    ) -> None:
        super().__init__()
        padding = kernel // 2 * dilation
        self.filter = nn.Conv2d(*sizes, kernel, stride, padding, dilation, bias=False)
        self.norm = FreezableBatchNorm2d(sizes[1], frozen)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.filter(x)))


class ResidualBlock(nn.Module):
    """x + f(x), f with two 3x3 convolutions ("basic") or 1x1, 3x3, 1x1 ("bottleneck")."""

    tap_points = ("output",)

    def __init__(self, config: ResNetConfig, d_in: int, d_out: int, stride: int, dilations: tuple[int, int]) -> None:
        super().__init__()
        self.taps = NO_TAPS
        make = partial(ConvNormAct, frozen=config.norm == "frozen")
        self.shortcut = make((d_in, d_out), 1, stride=stride) if d_in != d_out or stride != 1 else None
        first, rest = dilations
        if config.block == "basic":
            layers = [
                make((d_in, d_out), 3, stride=stride, dilation=first, activation="relu"),
                make((d_out, d_out), 3, dilation=rest),
            ]
        else:
            inner = d_out // 4
            early, late = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
            layers = [
                make((d_in, inner), 1, stride=early, activation="relu"),
                make((inner, inner), 3, stride=late, dilation=first, activation="relu"),
                make((inner, d_out), 1),
            ]
        self.layers = nn.Sequential(*layers)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        aside = x if self.shortcut is None else self.shortcut(x)
        return self.taps.record("output", self.activation(self.layers(x) + aside))


class ResNetBackbone(nn.Module):
    """[B, C, H, W] -> [B, d_out, H / 32, W / 32] (or / 16 with `dilation`, / 8 with a small stem)."""

    tap_points = ("features",)

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        kernel, stride = (7, 2) if config.stem == "large" else (3, 1)
        self.stem = ConvNormAct(
            (config.n_channels, config.d_stem), kernel, config.norm == "frozen", stride, activation=config.activation
        )
        self.stages = nn.ModuleList()
        d_in = config.d_stem
        for index, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
            dilate = config.dilation and index == len(config.depths) - 1
            stride = (2 if config.downsample_in_first_stage else 1) if index == 0 else (1 if dilate else 2)
            later = 2 if dilate else 1
            # The first block of a dilated stage uses the previous stage's dilation.
            blocks = [ResidualBlock(config, d_in, width, stride, (1, later))]
            blocks += [ResidualBlock(config, width, width, 1, (later, later)) for _ in range(depth - 1)]
            self.stages.append(nn.Sequential(*blocks))
            d_in = width

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.is_cuda:  # convolutions are faster in channels-last layout on GPU
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        x = self.stem(pixels)
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1) if self.config.stem == "large" else x
        self.taps.record("features", x)
        for stage in self.stages[: self.config.used]:
            x = self.taps.record("features", stage(x))
        return x


def check_images(pixels: Tensor, n_channels: int) -> None:
    if pixels.dim() != 4 or pixels.shape[1] != n_channels:
        raise InputError(f"pixel_values has shape {list(pixels.shape)}; it must be [batch, {n_channels}, H, W].")
