"""Anchor queries: boxes that every decoder layer refines (DAB-DETR, Liu et al. 2022).

The positional part of a query is the sine embedding of its box, which attention adds to it. Its content starts as the
encoder's features at the box's center (as in two-stage detectors), and every layer predicts an offset.

`AnchorQueries` is the input that makes the queries, whose boxes are their positions, as logits. `BoxEmbedding` is a
layer of the stack that refines them (`layers.wrappers.RefiningStack`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.positions import sinusoids
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens
from anyformer.inputs.patches import as_image_grid, cell_centers
from anyformer.layers.mlp import MLP

START = 0.15  # initial width and height of an anchor, relative to the image


def box_sinusoids(places: Tensor, d_model: int) -> Tensor:
    """Sine embedding of coordinates in 0…1, […, n] -> […, n·d/2], with DETR's frequencies."""
    return sinusoids(places.float() * (2 * math.pi), d_model // 2, dtype=torch.float32).flatten(-2)


class AnchorBoxes(nn.Module):
    """Learned anchor boxes of all groups, as logits; initialized to an even grid."""

    def __init__(self, n: int, groups: int) -> None:
        super().__init__()
        self.n = n
        self.weight = nn.Parameter(torch.empty(groups * n, 4))

    def reset(self, std: float) -> None:
        columns = math.ceil(math.sqrt(self.n))
        centers = cell_centers(math.ceil(self.n / columns), columns)[torch.arange(len(self.weight)) % self.n]
        self.weight.data.copy_(torch.cat([centers, torch.full_like(centers, START)], dim=1).logit())

    def forward(self) -> Tensor:
        return self.weight


class AnchorQueries(Input):
    """`n` queries at anchor boxes, whose content starts as the features of the stage `source`. In training there are
    `groups` of them, each matched separately (Group DETR, Chen et al. 2023): [B·groups, n, d]; otherwise the first.
    """

    def __init__(self, n: int, d_model: int, source: str, groups: int = 1) -> None:
        super().__init__()
        self.n, self.source, self.groups = n, source, groups
        self.anchors = AnchorBoxes(n, groups)
        self.vectors = LearnedTokens(groups * n, d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        cells = run.tokens[self.source].pad()
        n = self.n * (self.groups if self.training else 1)
        boxes = self.anchors()[:n]
        x = sample_grid(cells, boxes.sigmoid()[:, :2]) + self.vectors()[:n]
        at = boxes.expand(len(x), -1, -1).unflatten(1, (-1, self.n)).flatten(0, 1)  # [B·groups, n, 4]
        return Tokens(x.unflatten(1, (-1, self.n)).flatten(0, 1), positions=at)


def sample_grid(cells: Tokens, points: Tensor) -> Tensor:
    """Sample a token grid bilinearly at points [n, 2] (x, y in 0…1 of the real part): [B, n, d]."""
    assert cells.grid is not None
    rows, columns = cells.grid
    at = points.to(cells.x.dtype).expand(cells.x.shape[0], -1, -1)
    if cells.mask is not None:
        real = cells.mask.unflatten(1, (rows, columns))
        across, down = real.any(1).sum(1) / columns, real.any(2).sum(1) / rows
        at = at * torch.stack([across, down], dim=-1)[:, None].to(at.dtype)
    found = F.grid_sample(as_image_grid(cells), at[:, None] * 2 - 1, padding_mode="border", align_corners=False)
    return found[:, :, 0].transpose(1, 2)


class BoxEmbedding(nn.Module):
    """Boxes [B, n, 4] as vectors that attention adds to the queries."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.code = MLP(2 * d_model, d_model, d_model)

    def forward(self, boxes: Tensor, dtype: torch.dtype) -> Tensor:
        made: Tensor = self.code(box_sinusoids(boxes, self.d_model).to(dtype))
        return made
