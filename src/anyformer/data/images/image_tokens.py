"""Images as sequences of tokens for autoregressive models: channel intensities, or the nearest colors of a palette.
`start` is the token before the first one; `figure` names the metric, in bits.
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

ROUNDS = 12  # iterations of k-means
CHUNK = 65536  # pixels compared with the palette at a time


@dataclass(frozen=True)
class PixelIntensities:
    """256 (or `values`) intensities for each channel, in the order of `raster`, whose depth is the number of channels.
    256 intensities are lossless, so that bits are bits of the image."""

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
        """The position of each token in a flattened image [C, H, W]."""
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
        """The number of tokens in the upper `share` of an image, in whole rows (or rows of blocks)."""
        rows = int(self.size[0] * share + 1e-9) // self.raster.rows * self.raster.rows
        return rows * self.size[1] * self.raster.depth


@dataclass(frozen=True, eq=False)
class ColorPalette:
    """The nearest of `colors` [n, 3] (-1 to 1) for each pixel, in raster order. Lossy."""

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
        """Read the clusters of a preprocessor_config.json; their number must be the model's vocabulary size."""
        clusters = config.get("clusters")
        if clusters is None:
            raise ConfigError('preprocessor_config.json has no "clusters", the colors of the tokens.')
        colors = torch.tensor(clusters, dtype=torch.float32)
        if colors.shape != (n, 3):
            raise ConfigError(f'"clusters" has shape {list(colors.shape)}; it must be {[n, 3]}.')
        return cls(size, colors)

    def write(self, config: bytes) -> bytes:
        """A preprocessor_config.json with these colors, as for transformers' ImageGPT."""
        fields = parse_object(config, "preprocessor_config.json")
        fields |= {"image_processor_type": "ImageGPTImageProcessor", "do_color_quantize": True}
        return (json.dumps({**fields, "clusters": self.colors.tolist()}) + "\n").encode()

    @classmethod
    def fit(cls, pixels: Tensor, n: int, size: tuple[int, int], seed: int = 0) -> ColorPalette:
        """Cluster pixels [m, 3] from 0 to 255 into `n` colors with k-means, starting from distinct pixels."""
        generator = torch.Generator().manual_seed(seed)
        distinct = scaled(torch.unique(pixels, dim=0))
        if len(distinct) < n:
            raise ConfigError(f"The images have {len(distinct)} different colors; a palette of {n} needs at least {n}.")
        values = scaled(pixels)
        colors = distinct[torch.randperm(len(distinct), generator=generator)[:n]]
        for _ in range(ROUNDS):
            own = nearest_color(values, colors)
            count = torch.zeros(n).index_add_(0, own, torch.ones(len(own)))
            total = torch.zeros(n, 3).index_add_(0, own, values)
            colors = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], colors)
        return cls(size, colors)


ImageTokenizer = PixelIntensities | ColorPalette


def scaled(pixels: Tensor) -> Tensor:
    """0 … 255 -> -1 … 1"""
    return (pixels.float() - 127.5) / 127.5


def nearest_color(values: Tensor, colors: Tensor) -> Tensor:
    """Squared distances as a² - 2ab + b², computed as in transformers, so that ties are equal."""
    found = []
    for some in values.split(CHUNK):
        distance = some.square().sum(1)[:, None] - 2 * (some @ colors.T) + colors.square().sum(1)[None, :]
        found.append(distance.argmin(dim=1))
    return torch.cat(found)
