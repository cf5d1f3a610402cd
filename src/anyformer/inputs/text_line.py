"""Text line images as columns: convolutions reduce a line to one row and its width by four."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.positions import Sinusoidal
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input


@dataclass(frozen=True, kw_only=True)
class TextLineInputConfig(Settings):
    """`widths`: channels of each stage; a stage is two 3x3 convolutions with a shortcut. Every stage halves the height,
    the first two also the width.
    """

    height: int = 32
    n_channels: int = 1
    widths: tuple[int, ...] = (48, 96, 160, 256)
    d_model: int = 256
    dropout: float = 0.0

    @property
    def rows(self) -> int:
        """Remaining rows, which form one token."""
        return self.height >> len(self.widths)

    def check(self) -> None:
        self.require(self.rows > 0, f"widths has {len(self.widths)} stages, too many to halve height {self.height}.")


class TextLineBlock(nn.Module):
    """x + f(x) with strides; columns beyond a line's end stay zero, so that padding has no effect."""

    def __init__(self, d_in: int, d_out: int, stride: tuple[int, int]) -> None:
        super().__init__()
        self.stride = stride
        self.first = nn.Conv2d(d_in, d_out, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(d_out, d_out, 3, padding=1, bias=False)
        self.aside = nn.Conv2d(d_in, d_out, 1, stride, bias=False)
        self.first_norm, self.second_norm = ChannelNorm(d_out), ChannelNorm(d_out)

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`real` [B, W] marks the line's columns."""
        real = None if real is None else real[:, :: self.stride[1]]
        y = mask_columns(F.relu(self.first_norm(self.first(x))), real)
        y = self.second_norm(self.second(y))
        return mask_columns(F.relu(y + self.aside(x)), real), real


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each pixel, independent of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def mask_columns(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None else x * real[:, None, None, :]


class TextLineInput(Input):
    """pixel_values [B, C, height, W] of lines of any width; pixel_mask [B, height, W] marks their real part."""

    names = ("pixel_values", "pixel_mask")

    def __init__(self, config: TextLineInputConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.n_channels, *config.widths)
        strides = [(2, 2 if i < 2 else 1) for i in range(len(config.widths))]
        self.blocks = nn.ModuleList(
            TextLineBlock(a, b, stride) for a, b, stride in zip(widths, widths[1:], strides, strict=False)
        )
        self.project = Linear(config.rows * widths[-1], config.d_model)
        self.positions = Sinusoidal(config.d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        _, pixels = run.require_one("pixel_values")
        config = self.config
        if pixels.dim() != 4 or pixels.shape[1] != config.n_channels or pixels.shape[2] != config.height:
            raise InputError(
                f"pixel_values has shape {list(pixels.shape)}; it must be [batch, {config.n_channels}, {config.height},"
                " width]."
            )
        mask = run.tensor("pixel_mask")
        real = None if mask is None else mask[:, 0].to(torch.bool)
        real = None if real is None or bool(real.all()) else real
        x = mask_columns(pixels.to(self.project.weight.dtype), real)
        for block in self.blocks:
            x, real = block(x, real)
        tokens = Tokens(self.project(x.flatten(1, 2).transpose(1, 2)), real, grid=(1, x.shape[3]))
        x = tokens.x + self.positions.embed(tokens)
        return tokens.replace(F.dropout(x, config.dropout, self.training))
