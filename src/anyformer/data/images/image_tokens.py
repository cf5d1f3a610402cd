"""Images as rows of numbers, one after another, for models that write them: intensities of the channels, or the
nearest colors of a palette. `start` is the token before the first, `figure` names what the loss measures, in bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import ConfigError
from anyformer.jsonfile import parse_object
from anyformer.layers.raster import Raster

ROUNDS = 12  # of k-means
CHUNK = 65536  # pixels that are compared with a palette at a time


@dataclass(frozen=True)
class PixelIntensities:
    """256 (or `values`) levels of each channel, in the order of `raster`, whose depth is the channels. Nothing is lost
    with 256, so that bits are bits of the image."""

    size: tuple[int, int]
    raster: Raster
    values: int = 256
    metric_name: str = "bits_per_dimension"

    @property
    def start(self) -> int:
        return self.values

    @property
    def length(self) -> int:
        return self.size[0] * self.size[1] * self.raster.depth

    def order(self, device: torch.device) -> Tensor:
        """Where each token stands in an image [C, H, W] laid out as one line."""
        row, column, channel = self.raster.coordinates(torch.arange(self.length, device=device))
        return (channel * self.size[0] + row) * self.size[1] + column

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels [B, C, H, W] from 0 to 255 -> tokens [B, length]"""
        levels = pixels.round().long() if pixels.is_floating_point() else pixels.long()
        levels = levels.clamp(0, 255) * self.values // 256
        return levels.flatten(1)[:, self.order(pixels.device)]

    def decode(self, tokens: Tensor) -> Tensor:
        """Tokens [B, length] -> pixels [B, C, H, W], 8 bits"""
        flat = torch.empty_like(tokens)
        flat[:, self.order(tokens.device)] = tokens
        levels = (flat * 255 / (self.values - 1)).round() if self.values != 256 else flat
        return levels.to(torch.uint8).view(-1, self.raster.depth, *self.size)

    def prefix_length(self, share: float) -> int:
        """How many tokens the upper `share` of an image is, in whole rows (of blocks, where it is written so)."""
        rows = int(self.size[0] * share + 1e-9) // self.raster.rows * self.raster.rows
        return rows * self.size[1] * self.raster.depth


@dataclass(frozen=True, eq=False)
class ColorPalette:
    """The nearest of `colours` [n, 3], from -1 to 1, for each pixel, row by row. What lies between them is lost."""

    size: tuple[int, int]
    colors: Tensor
    metric_name: str = "bits_per_code"

    @property
    def start(self) -> int:
        return len(self.colors)

    @property
    def length(self) -> int:
        return self.size[0] * self.size[1]

    def encode(self, pixels: Tensor) -> Tensor:
        values = scaled(pixels).flatten(2).transpose(1, 2).reshape(-1, 3)
        return nearest_color(values, self.colors.to(values)).view(len(pixels), -1)

    def decode(self, tokens: Tensor) -> Tensor:
        pixels = (127.5 * (self.colors.to(tokens.device)[tokens] + 1)).round().clamp(0, 255)
        return pixels.to(torch.uint8).transpose(1, 2).reshape(-1, 3, *self.size)

    def prefix_length(self, share: float) -> int:
        return int(self.size[0] * share + 1e-9) * self.size[1]

    @classmethod
    def read(cls, config: Mapping[str, Any], size: tuple[int, int], n: int) -> ColorPalette:
        """The clusters of a preprocessor_config.json, of which the model must have as many words."""
        clusters = config.get("clusters")
        if clusters is None:
            raise ConfigError('the preprocessor has no "clusters", the colors that the model\'s words stand for.')
        colours = torch.tensor(clusters, dtype=torch.float32)
        if colours.shape != (n, 3):
            raise ConfigError(f'"clusters" has shape {list(colours.shape)}; the model has words for {[n, 3]}.')
        return cls(size, colours)

    def write(self, config: bytes) -> bytes:
        """A preprocessor_config.json with these colors in it, as transformers' ImageGPT has them."""
        said = parse_object(config, "preprocessor_config.json")
        said |= {"image_processor_type": "ImageGPTImageProcessor", "do_color_quantize": True}
        return (json.dumps({**said, "clusters": self.colors.tolist()}) + "\n").encode()

    @classmethod
    def fit(cls, pixels: Tensor, n: int, size: tuple[int, int], seed: int = 0) -> ColorPalette:
        """The means of `n` clusters of pixels [m, 3] from 0 to 255 (k-means), of which no two are alike at first."""
        chance = torch.Generator().manual_seed(seed)
        distinct = scaled(torch.unique(pixels, dim=0))
        if len(distinct) < n:
            raise ConfigError(f"The images have {len(distinct)} different colors, fewer than the model's {n} words.")
        values = scaled(pixels)
        colours = distinct[torch.randperm(len(distinct), generator=chance)[:n]]
        for _ in range(ROUNDS):
            own = nearest_color(values, colours)
            count = torch.zeros(n).index_add_(0, own, torch.ones(len(own)))
            total = torch.zeros(n, 3).index_add_(0, own, values)
            colours = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], colours)
        return cls(size, colours)


ImageTokenizer = PixelIntensities | ColorPalette


def scaled(pixels: Tensor) -> Tensor:
    """0 … 255 -> -1 … 1"""
    return (pixels.float() - 127.5) / 127.5


def nearest_color(values: Tensor, colors: Tensor) -> Tensor:
    """|a - b|² as a² - 2ab + b², as transformers computes it, so that ties fall alike."""
    found = []
    for some in values.split(CHUNK):
        distance = some.square().sum(1)[:, None] - 2 * (some @ colors.T) + colors.square().sum(1)[None, :]
        found.append(distance.argmin(dim=1))
    return torch.cat(found)
