"""Text line images as columns: convolutions reduce a line to one row and its width by four."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from anyformer.core.linear import Linear
from anyformer.core.positions import Sinusoidal
from anyformer.core.tokens import Tokens
from anyformer.errors import ConfigError
from anyformer.forward_context import ForwardContext, check_shape
from anyformer.inputs.base import Input
from anyformer.layers.resnet import ChannelNorm, ConvNormAct, ResidualBlock, conv, mask_columns


def text_line_block(d_in: int, d_out: int, stride: tuple[int, int]) -> ResidualBlock:
    layers = [
        ConvNormAct(conv(d_in, d_out, 3, stride), ChannelNorm(d_out), "relu"),
        ConvNormAct(conv(d_out, d_out, 3), ChannelNorm(d_out)),
    ]
    return ResidualBlock(layers, conv(d_in, d_out, 1, stride))


class TextLineInput(Input):
    """pixel_values [B, C, height, W] of lines of any width; pixel_mask [B, height, W] marks their real part.

    `widths`: channels of each stage, two 3x3 convolutions with a shortcut. Every stage halves the height, the first two
    also the width.
    """

    names = ("pixel_values", "pixel_mask")

    def __init__(
        self, height: int, n_channels: int, widths: tuple[int, ...], d_model: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        rows = height >> len(widths)  # remaining rows, which form one token
        if not rows:
            raise ConfigError(f"widths has {len(widths)} stages, too many to halve height {height}.")
        self.height, self.n_channels, self.dropout = height, n_channels, dropout
        self.strides = [(2, 2 if i < 2 else 1) for i in range(len(widths))]
        sizes = zip((n_channels, *widths), widths, self.strides, strict=False)
        self.blocks = nn.ModuleList(text_line_block(d_in, d_out, stride) for d_in, d_out, stride in sizes)
        self.project = Linear(rows * widths[-1], d_model)
        self.positions = Sinusoidal(d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        _, pixels = run.require_one("pixel_values")
        check_shape(pixels, "pixel_values", "batch", self.n_channels, self.height, "width")
        mask = run.tensor("pixel_mask")
        real = None if mask is None else mask[:, 0].to(torch.bool)
        real = None if real is None or bool(real.all()) else real
        x = mask_columns(pixels.to(self.project.weight.dtype), real)
        for block, (_, stride) in zip(self.blocks, self.strides, strict=True):
            real = None if real is None else real[:, ::stride]
            x = block(x, real)
        tokens = Tokens(self.project(x.flatten(1, 2).transpose(1, 2)), real, grid=(1, x.shape[3]))
        x = tokens.x + self.positions(tokens)
        return tokens.replace(F.dropout(x, self.dropout, self.training))
