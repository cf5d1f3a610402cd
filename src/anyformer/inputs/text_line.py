"""Text line images as columns: convolutions reduce a line to one row and its width by four."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.positions import Sinusoidal
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input
from anyformer.layers.resnet import ChannelNorm, ConvNormAct, ResidualBlock, conv, mask_columns


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


def text_line_block(d_in: int, d_out: int, stride: tuple[int, int]) -> ResidualBlock:
    layers = [
        ConvNormAct(conv(d_in, d_out, 3, stride), ChannelNorm(d_out), "relu"),
        ConvNormAct(conv(d_out, d_out, 3), ChannelNorm(d_out)),
    ]
    return ResidualBlock(layers, conv(d_in, d_out, 1, stride))


class TextLineInput(Input):
    """pixel_values [B, C, height, W] of lines of any width; pixel_mask [B, height, W] marks their real part."""

    names = ("pixel_values", "pixel_mask")

    def __init__(self, config: TextLineInputConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.n_channels, *config.widths)
        self.strides = [(2, 2 if i < 2 else 1) for i in range(len(config.widths))]
        self.blocks = nn.ModuleList(
            text_line_block(a, b, stride) for a, b, stride in zip(widths, widths[1:], self.strides, strict=False)
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
        for block, (_, stride) in zip(self.blocks, self.strides, strict=True):
            real = None if real is None else real[:, ::stride]
            x = block(x, real)
        tokens = Tokens(self.project(x.flatten(1, 2).transpose(1, 2)), real, grid=(1, x.shape[3]))
        x = tokens.x + self.positions(tokens)
        return tokens.replace(F.dropout(x, config.dropout, self.training))
