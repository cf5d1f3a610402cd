"""Keypoint heads for body joints or facial landmarks: one heat map or one query per keypoint.

Both heads take `labels` [B, keypoints, 3]: x and y as fractions of the image's width and height, and a weight (0:
position unknown).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.attend import attention_weights
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK, Padding
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext, check_shape
from anyformer.heads.base import Head
from anyformer.heads.convolutions import SameConv2d, conv_norm_relu
from anyformer.heads.heatmap_peaks import find_peaks
from anyformer.inputs.patches import as_image_grid, cell_centers
from anyformer.layers.mlp import ZeroLinear

JOINTS = ": x, y and weight of each keypoint"  # what labels hold
D_CLASSIC = 256  # channels between the transposed convolutions
FAINT = 1e-3  # standard deviation of the last layer at initialization: maps are near zero almost everywhere


class PoseHead(Head):
    """Base class of keypoint heads."""

    names: tuple[str, ...] = ("labels",)

    def keypoints(self, fields: dict[str, Any]) -> Tensor:
        """Return [B, keypoints, 3] from the output of `forward`: x and y as fractions of the image, and a score."""
        raise TypeError("a pose head must define keypoints")


@dataclass(frozen=True, kw_only=True)
class HeatmapConfig(Settings):
    d_model: int
    n_keypoints: int
    stage: str
    decoder: Literal["simple", "classic"] = "simple"
    scale: int = 4  # upsampling of the simple decoder; the classic one has 4
    layer: int  # number of blocks after which the tokens are read
    norm: NormConfig
    sigma: float = 2.0  # standard deviation of a keypoint's Gaussian, in cells


class HeatmapHead(PoseHead):
    """One heat map per keypoint (Xu et al. 2022): `heatmaps` [B, keypoints, rows, columns].

    "simple": bilinear upsampling and one 3x3 convolution. "classic": two transposed convolutions. The targets are
    Gaussians of height 1; the loss is the squared error relative to their energy.
    """

    names = ("labels", "flip_pairs")

    def __init__(self, config: HeatmapConfig) -> None:
        super().__init__(config.stage)
        self.config = config
        self.norm = make_norm(config.norm, config.d_model)
        self.widen = nn.ModuleList()
        if config.decoder == "classic":
            self.widen.append(conv_norm_relu(config.d_model, D_CLASSIC, 4, widen=True))
            self.widen.append(conv_norm_relu(D_CLASSIC, D_CLASSIC, 4, widen=True))
            self.joints = SameConv2d(D_CLASSIC, config.n_keypoints, 1, spread=FAINT)
        else:
            self.joints = SameConv2d(config.d_model, config.n_keypoints, 3, spread=FAINT)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.layers[self.stage][self.config.layer]
        x = as_image_grid(tokens.replace(self.norm(tokens.x)))
        if self.widen:
            for layer in self.widen:
                x = layer(x)
        else:
            x = F.interpolate(F.relu(x), scale_factor=self.config.scale, mode="bilinear", align_corners=False)
        maps = self.joints(x)
        pairs = run.tensor("flip_pairs")
        maps = maps if pairs is None else flip_heatmaps_back(maps, pairs)
        labels = run.tensor("labels")
        return {**({} if labels is None else {"loss": self.loss(maps, labels)}), "heatmaps": maps}

    def loss(self, maps: Tensor, labels: Tensor) -> Tensor:
        check_shape(labels, "labels", maps.shape[0], maps.shape[1], 3, why=JOINTS)
        target = gaussian_heatmaps(labels[..., :2], (maps.shape[2], maps.shape[3]), self.config.sigma)
        missed = (maps.float() - target).square().sum(dim=(2, 3)) / target.square().sum(dim=(2, 3)).clamp(min=1.0)
        return (missed * labels[..., 2]).sum() / labels[..., 2].sum().clamp(min=1.0)

    def keypoints(self, fields: dict[str, Any]) -> Tensor:
        maps = fields["heatmaps"].float()
        cells, scores = find_peaks(maps)
        ends = torch.tensor([maps.shape[3] - 1, maps.shape[2] - 1], device=maps.device).clamp(min=1)
        return torch.cat([cells / ends, scores.unsqueeze(-1)], dim=-1)


def gaussian_heatmaps(places: Tensor, size: tuple[int, int], spread: float) -> Tensor:
    """Gaussians of height 1 at keypoints [B, keypoints, 2] -> [B, keypoints, rows, columns]. The centers of the first
    and last cell are 0 and 1 (Huang et al. 2020).
    """
    rows, columns = size
    x, y = places[..., 0, None] * (columns - 1), places[..., 1, None] * (rows - 1)
    across = (torch.arange(columns, device=places.device) - x).square()
    down = (torch.arange(rows, device=places.device) - y).square()
    return torch.exp(-(down.unsqueeze(-1) + across.unsqueeze(-2)) / (2 * spread**2))


def flip_heatmaps_back(maps: Tensor, pairs: Tensor) -> Tensor:
    """Flip the maps of a mirrored image back and exchange left and right keypoints."""
    left, right = pairs.unbind(-1)
    turned = maps.flip(-1)
    exchanged = turned.clone()
    exchanged[:, left], exchanged[:, right] = turned[:, right], turned[:, left]
    return exchanged


class KeypointHead(PoseHead):
    """Each token predicts one keypoint: `keypoints` [B, keypoints, 2] as fractions of the image.

    The token attends to the image's cells; its keypoint is the mean of the cell centers, weighted by the attention (Sun
    et al. 2018), plus an offset predicted by the token. The loss is the mean L1 distance, over the tokens of all
    layers.
    """

    def __init__(self, d_model: int, stage: str, sees: str, norm: NormConfig) -> None:
        super().__init__(stage)
        self.sees = sees
        self.norm = make_norm(norm, d_model)
        self.query, self.key = Linear(d_model, d_model), Linear(d_model, d_model)
        self.hidden, self.step = Linear(d_model, d_model), ZeroLinear(d_model, 2)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        cells = run.tokens[self.sees].pad()
        layers = [layer.pad().x for layer in run.layers[self.stage][1:]]  # the first is the input
        labels = run.tensor("labels") if run.state is None else None
        if labels is None:
            return {"keypoints": self.point(layers[-1], cells)}
        check_shape(labels, "labels", layers[-1].shape[0], layers[-1].shape[1], 3, why=JOINTS)
        found = torch.stack([self.point(layer, cells) for layer in layers])
        missed = (found - labels[..., :2]).abs().mean(dim=-1) * labels[..., 2]
        each = missed.sum(dim=(1, 2)) / labels[..., 2].sum().clamp(min=1.0)
        return {"loss": each.sum(), "keypoints": found[-1], "layer_losses": each}

    def fit(self, x: Tensor, cells: Tokens) -> Tensor:
        """Similarity of each token and cell, [B, keypoints, cells], in at least single precision."""
        query, key = self.query(self.norm(x)).unsqueeze(1), self.key(cells.x).unsqueeze(1)  # one head
        mask = NO_MASK if cells.mask is None else Padding(cells.mask)
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            return attention_weights(query.to(wide), key.to(wide), mask, scale=x.shape[-1] ** -0.5).squeeze(1)

    def point(self, x: Tensor, cells: Tokens) -> Tensor:
        """Predict positions in single precision; half precision is coarser than a pixel."""
        weights, step = self.fit(x, cells), self.step(F.gelu(self.hidden(self.norm(x))))
        with torch.autocast(x.device.type, enabled=False):
            assert cells.grid is not None
            rows, columns = cells.grid
            centers = cell_centers(rows, columns, x.device).to(weights.dtype)
            return weights @ centers + step.to(weights.dtype)

    def keypoints(self, fields: dict[str, Any]) -> Tensor:
        found: Tensor = fields["keypoints"]
        return torch.cat([found, torch.ones_like(found[..., :1])], dim=-1)
