"""Where the keypoints of a body or the landmarks of a face are: by a heat map each, or by a query each.

Both heads take `labels` [B, keypoints, 3]: x and y as shares of the image's width and height, and how much the joint
counts (0: nobody knows where it is).
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
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.heads.convolutions import ConvNormReLU, SameConv2d, as_image_grid
from anyformer.heads.heatmap_peaks import find_peaks
from anyformer.inputs.anchors import ZeroLinear
from anyformer.tokens import Tokens

D_CLASSIC = 256  # channels between the transposed convolutions
FAINT = 1e-3  # of fresh filters for maps: a bell is nothing nearly everywhere, and so must be the first guess


class PoseHead(Head):
    """A head that says where each joint is."""

    names: tuple[str, ...] = ("labels",)

    def keypoints(self, fields: dict[str, Any]) -> Tensor:
        """[B, keypoints, 3] of what `forward` gave: x and y as shares of the image, and a score."""
        raise TypeError("a pose head says where the keypoints are")


def check_joints(labels: Tensor, batch: int, joints: int) -> Tensor:
    """Places and weights apart."""
    if tuple(labels.shape) != (batch, joints, 3):
        raise InputError(
            f"labels has shape {list(labels.shape)}; it must be {[batch, joints, 3]}: x, y and weight of every joint."
        )
    return labels


@dataclass(frozen=True, kw_only=True)
class HeatmapConfig(Settings):
    d_model: int
    n_keypoints: int
    stage: str
    decoder: Literal["simple", "classic"] = "simple"
    scale: int = 4  # how much larger than the grid the simple decoder's maps are; the classic one's are 4 times
    layer: int  # the number of blocks after which the tokens are read
    norm: NormConfig
    sigma: float = 2.0  # of the bell that a keypoint is in its map, in cells


class HeatmapHead(PoseHead):
    """A map for each joint, high where it is (Xu et al. 2022): `heatmaps` [B, keypoints, rows, columns].

    "simple": bilinear and one 3x3 convolution. "classic": two transposed convolutions. Trained on bells of height 1;
    the loss is the share of their energy that the maps miss.
    """

    names = ("labels", "flip_pairs")

    def __init__(self, config: HeatmapConfig) -> None:
        super().__init__(config.stage)
        self.config = config
        self.norm = make_norm(config.norm, config.d_model)
        self.widen = nn.ModuleList()
        if config.decoder == "classic":
            self.widen.append(ConvNormReLU(config.d_model, D_CLASSIC, 4, widen=True))
            self.widen.append(ConvNormReLU(D_CLASSIC, D_CLASSIC, 4, widen=True))
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
        labels = check_joints(labels, maps.shape[0], maps.shape[1])
        target = gaussian_heatmaps(labels[..., :2], (maps.shape[2], maps.shape[3]), self.config.sigma)
        missed = (maps.float() - target).square().sum(dim=(2, 3)) / target.square().sum(dim=(2, 3)).clamp(min=1.0)
        return (missed * labels[..., 2]).sum() / labels[..., 2].sum().clamp(min=1.0)

    def keypoints(self, fields: dict[str, Any]) -> Tensor:
        maps = fields["heatmaps"].float()
        cells, scores = find_peaks(maps)
        ends = torch.tensor([maps.shape[3] - 1, maps.shape[2] - 1], device=maps.device).clamp(min=1)
        return torch.cat([cells / ends, scores.unsqueeze(-1)], dim=-1)


def gaussian_heatmaps(places: Tensor, size: tuple[int, int], spread: float) -> Tensor:
    """[B, keypoints, 2] -> [B, keypoints, rows, columns]: height 1 at the keypoint. The centers of the first and
    the last cell stand for 0 and 1 (Huang et al. 2020)."""
    rows, columns = size
    x, y = places[..., 0, None] * (columns - 1), places[..., 1, None] * (rows - 1)
    across = (torch.arange(columns, device=places.device) - x).square()
    down = (torch.arange(rows, device=places.device) - y).square()
    return torch.exp(-(down.unsqueeze(-1) + across.unsqueeze(-2)) / (2 * spread**2))


def flip_heatmaps_back(maps: Tensor, pairs: Tensor) -> Tensor:
    """Maps of a mirrored image, for the image itself: turned back, left and right keypoints exchanged."""
    left, right = pairs.unbind(-1)
    turned = maps.flip(-1)
    exchanged = turned.clone()
    exchanged[:, left], exchanged[:, right] = turned[:, right], turned[:, left]
    return exchanged


class KeypointHead(PoseHead):
    """Each token is a keypoint and points at where it is: `keypoints` [B, keypoints, 2] as shares of the image.

    A token is compared with every cell of the image; the mean of the cells' middles, weighed by how well they fit
    (Sun et al. 2018), is the place, but for a step that the token adds to it. So the gradient moves a keypoint over the
    image from the first step on. The loss is the mean distance along x and along y, of every layer's tokens.
    """

    def __init__(self, d_model: int, stage: str, sees: str, norm: NormConfig) -> None:
        super().__init__(stage)
        self.sees = sees
        self.norm = make_norm(norm, d_model)
        self.query, self.key = Linear(d_model, d_model), Linear(d_model, d_model)
        self.hidden, self.step = Linear(d_model, d_model), ZeroLinear(d_model, 2)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        cells = run.tokens[self.sees].pad()
        layers = [layer.pad().x for layer in run.layers[self.stage][1:]]  # the first is what came in
        labels = run.tensor("labels") if run.state is None else None
        if labels is None:
            return {"keypoints": self.point(layers[-1], cells)}
        labels = check_joints(labels, layers[-1].shape[0], layers[-1].shape[1])
        found = torch.stack([self.point(layer, cells) for layer in layers])
        missed = (found - labels[..., :2]).abs().mean(dim=-1) * labels[..., 2]
        each = missed.sum(dim=(1, 2)) / labels[..., 2].sum().clamp(min=1.0)
        return {"loss": each.sum(), "keypoints": found[-1], "layer_losses": each}

    def fit(self, x: Tensor, cells: Tokens) -> Tensor:
        """[B, keypoints, cells]: how well each cell fits the token that points at it, in single precision at least."""
        query, key = self.query(self.norm(x)).unsqueeze(1), self.key(cells.x).unsqueeze(1)  # one head
        mask = NO_MASK if cells.mask is None else Padding(cells.mask)
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            return attention_weights(query.to(wide), key.to(wide), mask, scale=x.shape[-1] ** -0.5).squeeze(1)

    def point(self, x: Tensor, cells: Tokens) -> Tensor:
        """Half precision would not tell pixels apart."""
        weights, step = self.fit(x, cells), self.step(F.gelu(self.hidden(self.norm(x))))
        with torch.autocast(x.device.type, enabled=False):
            return weights @ cell_centers(cells).to(weights.dtype) + step.to(weights.dtype)

    def keypoints(self, fields: dict[str, Any]) -> Tensor:
        found: Tensor = fields["keypoints"]
        return torch.cat([found, torch.ones_like(found[..., :1])], dim=-1)


def cell_centers(cells: Tokens) -> Tensor:
    """[cells, 2]: x and y of each cell's middle, as shares of the image."""
    assert cells.grid is not None
    rows, columns = cells.grid
    cell = torch.arange(rows * columns, device=cells.x.device)
    return torch.stack([(cell % columns + 0.5) / columns, (cell // columns + 0.5) / rows], dim=-1)
