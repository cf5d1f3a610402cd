"""Convolutional networks that turn an image into a feature grid: ResNet (He et al. 2016) and a small stem, of the same
parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.taps import NO_TAPS

Stride = int | tuple[int, int]  # of rows and columns


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


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each pixel, independent of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ConvNormAct(nn.Module):
    """A convolution, a norm and an activation: the unit of every convolutional network here."""

    def __init__(self, filter: nn.Conv2d | nn.ConvTranspose2d, norm: nn.Module, activation: str = "linear") -> None:
        super().__init__()
        self.filter, self.norm = filter, norm
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.filter(x)))


def conv(d_in: int, d_out: int, kernel: int, stride: Stride = 1, dilation: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the size of the image, up to the stride."""
    return nn.Conv2d(d_in, d_out, kernel, stride, kernel // 2 * dilation, dilation, bias=False)


class ResidualBlock(nn.Module):
    """x + f(x); `shortcut` changes the shape of x if f does. `real` [B, W] marks the columns that are not padding, at
    the width of the result; the others stay zero."""

    tap_points = ("output",)

    def __init__(
        self, layers: Iterable[nn.Module], shortcut: nn.Module | None = None, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.taps = NO_TAPS
        self.shortcut = shortcut
        self.layers = nn.Sequential(*layers)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        aside = x if self.shortcut is None else self.shortcut(x)
        for layer in self.layers:
            x = mask_columns(layer(x), real)
        return self.taps.record("output", self.activation(x + aside))


def mask_columns(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None else x * real[:, None, None, :]


def residual_block(
    config: ResNetConfig, d_in: int, d_out: int, stride: int, dilations: tuple[int, int]
) -> ResidualBlock:
    """Two 3x3 convolutions ("basic") or 1x1, 3x3, 1x1 ("bottleneck")."""

    def layer(
        d_in: int, d_out: int, kernel: int, stride: int = 1, dilation: int = 1, act: str = "linear"
    ) -> ConvNormAct:
        norm = FreezableBatchNorm2d(d_out, config.norm == "frozen")
        return ConvNormAct(conv(d_in, d_out, kernel, stride, dilation), norm, act)

    shortcut = layer(d_in, d_out, 1, stride) if d_in != d_out or stride != 1 else None
    first, rest = dilations
    if config.block == "basic":
        layers = [layer(d_in, d_out, 3, stride, first, "relu"), layer(d_out, d_out, 3, dilation=rest)]
        return ResidualBlock(layers, shortcut, config.activation)
    inner = d_out // 4
    early, late = (stride, 1) if config.downsample_in_bottleneck else (1, stride)
    layers = [layer(d_in, inner, 1, early, act="relu"), layer(inner, inner, 3, late, first, "relu")]
    return ResidualBlock([*layers, layer(inner, d_out, 1)], shortcut, config.activation)


class ResNetBackbone(nn.Module):
    """[B, C, H, W] -> [B, d_out, H / 32, W / 32] (or / 16 with `dilation`, / 8 with a small stem)."""

    tap_points = ("features",)

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        kernel, stride = (7, 2) if config.stem == "large" else (3, 1)
        norm = FreezableBatchNorm2d(config.d_stem, config.norm == "frozen")
        self.stem = ConvNormAct(conv(config.n_channels, config.d_stem, kernel, stride), norm, config.activation)
        self.stages = nn.ModuleList()
        d_in = config.d_stem
        for index, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
            dilate = config.dilation and index == len(config.depths) - 1
            stride = (2 if config.downsample_in_first_stage else 1) if index == 0 else (1 if dilate else 2)
            later = 2 if dilate else 1
            # The first block of a dilated stage uses the previous stage's dilation.
            blocks = [residual_block(config, d_in, width, stride, (1, later))]
            blocks += [residual_block(config, width, width, 1, (later, later)) for _ in range(depth - 1)]
            self.stages.append(nn.Sequential(*blocks))
            d_in = width

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem(channels_last(pixels))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1) if self.config.stem == "large" else x
        self.taps.record("features", x)
        for stage in self.stages[: self.config.used]:
            x = self.taps.record("features", stage(x))
        return x


@dataclass(frozen=True, kw_only=True)
class ConvStemConfig(Settings):
    """Each stage halves the image and has `depths` residual blocks. With four stages a cell is 16 pixels wide."""

    n_channels: int = 3
    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (0, 1, 2, 2)
    groups: int = 8  # of the group norm (Wu and He 2018), which does not depend on the batch

    def check(self) -> None:
        self.require(len(self.widths) == len(self.depths) > 0, "widths and depths must have one entry per stage each.")
        odd = [width for width in self.widths if width % self.groups]
        self.require(not odd, f"widths {odd} are not multiples of groups {self.groups}.")

    @property
    def d_out(self) -> int:
        return self.widths[-1]


class ConvStem(nn.Module):
    """A small network for little data: [B, C, H, W] -> [B, d_out, H / 2^stages, W / 2^stages], rounded up."""

    def __init__(self, config: ConvStemConfig) -> None:
        super().__init__()
        self.config = config
        d_in = config.n_channels
        stages: list[nn.Module] = []
        for width, depth in zip(config.widths, config.depths, strict=True):
            blocks = [self._block(width) for _ in range(depth)]
            stages.append(nn.Sequential(self._layer(d_in, width, 2), nn.ReLU(), *blocks))
            d_in = width
        self.stages = nn.Sequential(*stages)

    def _block(self, width: int) -> ResidualBlock:
        return ResidualBlock([self._layer(width, width, activation="relu"), self._layer(width, width)])

    def _layer(self, d_in: int, d_out: int, stride: int = 1, activation: str = "linear") -> ConvNormAct:
        return ConvNormAct(conv(d_in, d_out, 3, stride), nn.GroupNorm(self.config.groups, d_out), activation)

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.stages(channels_last(pixels))
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


def channels_last(pixels: Tensor) -> Tensor:
    """Images in the layout in which convolutions are faster on a GPU."""
    return pixels.contiguous(memory_format=torch.channels_last) if pixels.is_cuda else pixels
