"""Raw pixels as tokens: channels concatenated with Fourier features of the position (Perceiver)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.core.positions import sin_and_cos
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext, check_shape
from anyformer.inputs.base import Input


def fourier_features(
    rows: int, columns: int, bands: int, resolution: int, device: torch.device | str | None = None
) -> Tensor:
    """Position features [rows·columns, 2 + 4·bands]: position from -1 to 1, then sines and cosines at `bands`
    frequencies, evenly spaced from 1 to the Nyquist frequency of `resolution` pixels (Jaegle et al. 2021, §3.2).
    """
    axes = [torch.linspace(-1.0, 1.0, n, device=device) for n in (rows, columns)]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)
    rates = torch.linspace(1.0, resolution / 2, bands, device=device)
    angles = math.pi * (places.unsqueeze(-1) * rates).flatten(1)  # first those of rows, then of columns
    return torch.cat([places, sin_and_cos(angles, "halves")], dim=-1)


class RawPixelInput(Input):
    """pixel_values [B, C, H, W] of any size -> tokens [B, H·W, C + 2 + 4·bands]; no parameters."""

    def __init__(self, n_channels: int, bands: int, resolution: int, alias: str = "inputs") -> None:
        super().__init__()
        self.n_channels, self.bands, self.resolution = n_channels, bands, resolution
        self.names = ("pixel_values", alias)

    @property
    def width(self) -> int:
        return self.n_channels + 2 + 4 * self.bands

    def forward(self, run: ForwardContext) -> Tokens:
        _, pixels = run.require_one(*self.names)
        check_shape(pixels, "pixel_values", "batch", self.n_channels, "height", "width")
        rows, columns = pixels.shape[2:]
        places = fourier_features(rows, columns, self.bands, self.resolution, pixels.device).to(pixels)
        x = torch.cat([pixels.flatten(2).transpose(1, 2), places.expand(len(pixels), -1, -1)], dim=-1)
        return Tokens(x, grid=(rows, columns))
