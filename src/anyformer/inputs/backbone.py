"""Input of DETR and its relatives: the feature grid of a convolutional network as tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.linear import Linear
from anyformer.core.positions import Positions
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, check_shape
from anyformer.inputs.base import Input
from anyformer.layers.resnet import ResNetBackbone, ResNetConfig


class FeatureInput(Input):
    """Each cell of the feature grid becomes a token, unchanged."""

    names = ("pixel_values",)

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.resnet = ResNetBackbone(config)

    def forward(self, run: ForwardContext) -> Tokens:
        _, pixels = run.require_one("pixel_values")
        check_shape(pixels, "pixel_values", "batch", self.config.n_channels, "H", "W")
        features = self.resnet(pixels.to(self.resnet.stem.filter.weight.dtype))
        return Tokens(features.flatten(2).transpose(1, 2), grid=(features.shape[2], features.shape[3]))


class BackboneInput(Input):
    """Each cell of the feature grid becomes a token; its position embedding is added in the attention of every layer.

    Without a ResNet, `net` computes the features: [B, n_channels, H, W] -> [B, d_features, rows, columns].
    """

    names = ("pixel_values", "pixel_mask", "inputs_embeds")

    def __init__(
        self,
        resnet: ResNetConfig | None,
        d_model: int,
        positions: Positions,
        dropout: float = 0.0,
        net: nn.Module | None = None,
        n_channels: int = 3,
        d_features: int = 0,
    ) -> None:
        super().__init__()
        self.n_channels, self.dropout = resnet.n_channels if resnet is not None else n_channels, dropout
        self.net = net
        self.resnet = ResNetBackbone(resnet) if resnet is not None else None
        self.project = Linear(resnet.d_out if resnet is not None else d_features, d_model)
        self.positions = positions

    def forward(self, run: ForwardContext) -> Tokens:
        name, value = run.require_one("pixel_values", "inputs_embeds")
        pixel_mask = run.tensor("pixel_mask")
        if name == "pixel_values":
            x, grid = self._features(value)
        else:
            x, grid = value, (int(value.shape[1] ** 0.5),) * 2
            if x.dim() != 3 or x.shape[1] != grid[0] * grid[1]:
                raise InputError(f"inputs_embeds has shape {list(x.shape)}; it must be [batch, n·n cells, features].")
        mask = None
        if pixel_mask is not None:
            small = F.interpolate(pixel_mask[None].float(), size=grid)[0].to(torch.bool).flatten(1)
            mask = None if bool(small.all()) else small
        # given features fill their grid: positions do not depend on the mask
        code = self.positions(Tokens(x, mask if name == "pixel_values" else None, grid=grid))
        return Tokens(F.dropout(x, self.dropout, self.training), mask, pos_embed=code, grid=grid)

    def _features(self, pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
        check_shape(pixels, "pixel_values", "batch", self.n_channels, "H", "W")
        net = self.resnet if self.resnet is not None else self.net
        assert net is not None
        features = net(pixels.to(self.project.weight.dtype))
        return self.project(features.flatten(2).transpose(1, 2)), (features.shape[2], features.shape[3])
