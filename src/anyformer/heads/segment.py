"""Semantic segmentation heads: linear on patches, from class queries, or on a feature pyramid.

`logits` [B, classes, rows, columns] are coarser than the image; `labels` [B, height, width] hold classes, and the loss
upsamples logits to their size. The label `ignore` does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.forward_context import ForwardContext, check_labels, check_shape
from anyformer.heads.base import Head
from anyformer.heads.convolutions import SameConv2d, Upsample2x, conv_norm_relu, resize
from anyformer.inputs.patches import as_image_grid

IGNORED_CLASS = 255  # label of pixels without a class


class SegmentationHead(Head):
    """Base class with the loss."""

    names = ("labels",)

    def __init__(self, stage: str, ignore: int = IGNORED_CLASS) -> None:
        super().__init__(stage)
        self.ignore = ignore

    def add_loss(
        self, run: ForwardContext, logits: Tensor, aside: Tensor | None = None, weight: float = 0.0
    ) -> dict[str, Any]:
        """Add the loss; `aside` are logits of an auxiliary head, whose loss is multiplied by `weight`."""
        labels = run.tensor("labels")
        if labels is None:
            return {"logits": logits}
        loss = pixel_loss(logits, labels, self.ignore)
        if aside is not None:
            loss = loss + weight * pixel_loss(aside, labels, self.ignore)
        return {"loss": loss, "logits": logits}


def pixel_loss(logits: Tensor, labels: Tensor, ignore: int) -> Tensor:
    check_shape(labels, "labels", logits.shape[0], "height", "width")
    check_labels(labels, logits.shape[1], "labels", ignore, "a pixel of no class")
    size = (labels.shape[1], labels.shape[2])
    return F.cross_entropy(resize(logits.float(), size), labels.long(), ignore_index=ignore)


class LinearSegmentationHead(SegmentationHead):
    """Linear classifier of each patch."""

    def __init__(self, d_model: int, n_labels: int, stage: str) -> None:
        super().__init__(stage)
        self.classes = Linear(d_model, n_labels)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage]
        return self.add_loss(run, as_image_grid(tokens.replace(self.classes(tokens.x))))


class MaskSegmentationHead(SegmentationHead):
    """Patches and class queries pass a decoder together; each patch gets the class of the most similar query (Strudel
    et al. 2021). The stage's last `n_labels` tokens are the queries.
    """

    def __init__(self, d_model: int, n_labels: int, stage: str) -> None:
        super().__init__(stage)
        self.n_labels = n_labels
        self.patch = Linear(d_model, d_model, bias=False)
        self.query = Linear(d_model, d_model, bias=False)
        self.norm = make_norm(NormConfig(), n_labels)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage].pad()
        x, queries = tokens.x[:, : -self.n_labels], tokens.x[:, -self.n_labels :]
        x, queries = F.normalize(self.patch(x), dim=-1), F.normalize(self.query(queries), dim=-1)
        return self.add_loss(run, as_image_grid(tokens.replace(self.norm(x @ queries.transpose(1, 2)))))


@dataclass(frozen=True, kw_only=True)
class UPerConfig(Settings):
    d_model: int
    n_labels: int
    stage: str
    layers: tuple[int, ...]  # number of blocks after which each of the four grids is read
    pools: tuple[int, ...] = (1, 2, 3, 6)  # grid sizes of the pyramid pooling
    ignore: int = IGNORED_CLASS
    auxiliary: bool = True  # adds an auxiliary head, used only in training
    auxiliary_weight: float = 0.4
    d_auxiliary: int = 256
    n_auxiliary_convs: int = 1  # number of its convolutions
    auxiliary_concat_input: bool = False  # concatenates its input grid to the output of its convolutions


class UPerHead(SegmentationHead):
    """UPerNet (Xiao et al. 2018): four grids, resized to 4x, 2x, 1x and 1/2, are added from the coarsest, which has
    pyramid pooling, to the finest.
    """

    def __init__(self, config: UPerConfig) -> None:
        super().__init__(config.stage, config.ignore)
        self.config = config
        width = config.d_model
        self.grids = FeaturePyramid(width)
        self.pools = nn.ModuleList(conv_norm_relu(width, width, 1) for _ in config.pools)
        self.pooled = conv_norm_relu(width * (1 + len(config.pools)), width, 3)
        self.sides = nn.ModuleList(conv_norm_relu(width, width, 1) for _ in range(3))
        self.outs = nn.ModuleList(conv_norm_relu(width, width, 3) for _ in range(3))
        self.together = conv_norm_relu(width * 4, width, 3)
        self.classes = SameConv2d(width, config.n_labels, 1)
        self.helper = FCNHead(config) if config.auxiliary else None

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        layers = run.layers[self.stage]
        grids = self.grids([as_image_grid(layers[i]) for i in self.config.layers])
        logits = self.classes(self._join(grids))
        training = self.helper is not None and run.tensor("labels") is not None
        aside = self.helper(grids[2]) if training and self.helper is not None else None
        return self.add_loss(run, logits, aside, self.config.auxiliary_weight)

    def _join(self, grids: list[Tensor]) -> Tensor:
        top = grids[3]
        size = (top.shape[2], top.shape[3])
        views = zip(self.config.pools, self.pools, strict=True)
        pooled = [resize(layer(F.adaptive_avg_pool2d(top, cells)), size) for cells, layer in views]
        rows = [layer(grid) for layer, grid in zip(self.sides, grids[:3], strict=True)]
        rows.append(self.pooled(torch.cat([top, *pooled], dim=1)))
        for i in (2, 1, 0):
            rows[i] = rows[i] + resize(rows[i + 1], (rows[i].shape[2], rows[i].shape[3]))
        outs = [layer(row) for layer, row in zip(self.outs, rows[:3], strict=True)]
        size = (outs[0].shape[2], outs[0].shape[3])
        fine = [outs[0], *(resize(out, size) for out in (*outs[1:], rows[3]))]
        made: Tensor = self.together(torch.cat(fine, dim=1))
        return made


class FeaturePyramid(nn.Module):
    """Resizes equal grids to 4x, 2x, 1x and 1/2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = Upsample2x(width, width), nn.BatchNorm2d(width), Upsample2x(width, width)
        self.twice = Upsample2x(width, width)

    def forward(self, grids: list[Tensor]) -> list[Tensor]:
        fine = self.second(F.gelu(self.norm(self.first(grids[0]))))
        return [fine, self.twice(grids[1]), grids[2], F.max_pool2d(grids[3], kernel_size=2, stride=2)]


class FCNHead(nn.Module):
    """A few convolutions on one grid (Long et al. 2015)."""

    def __init__(self, config: UPerConfig) -> None:
        super().__init__()
        widths = [config.d_model, *[config.d_auxiliary] * config.n_auxiliary_convs]
        self.layers = nn.ModuleList(conv_norm_relu(d_in, d_out, 3) for d_in, d_out in pairwise(widths))
        self.again = (
            conv_norm_relu(config.d_model + config.d_auxiliary, config.d_auxiliary, 3)
            if config.auxiliary_concat_input
            else None
        )
        self.classes = SameConv2d(config.d_auxiliary, config.n_labels, 1)

    def forward(self, grid: Tensor) -> Tensor:
        x = grid
        for layer in self.layers:
            x = layer(x)
        x = x if self.again is None else self.again(torch.cat([grid, x], dim=1))
        made: Tensor = self.classes(x)
        return made
