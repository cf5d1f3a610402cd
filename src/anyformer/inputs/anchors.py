"""Anchor queries: boxes that every decoder layer refines (DAB-DETR, Liu et al. 2022).

The positional part of a query is the sine embedding of its box, which attention adds to it. Its content starts as the
encoder's features at the box's center (as in two-stage detectors), and every layer predicts an offset.

`AnchorQueries` is the input that makes the queries, whose boxes are their positions, as logits. `BoxOffsets` and
`BoxEmbedding` are the layers of the stack that refines them (`layers.wrappers.RefiningStack`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.positions import sinusoids
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens

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
        rows = math.ceil(self.n / columns)
        index = torch.arange(len(self.weight)) % self.n
        x, y = (index % columns + 0.5) / columns, (index // columns + 0.5) / rows
        size = torch.full_like(x, START)
        self.weight.data.copy_(torch.stack([x, y, size, size], dim=1).logit())

    def forward(self) -> Tensor:
        return self.weight


@dataclass(frozen=True, kw_only=True)
class AnchorQueriesConfig(Settings):
    n: int
    d_model: int
    source: str  # the stage that gives the image's cells
    groups: int = 1  # query groups in training, each matched separately (Group DETR, Chen et al. 2023)


class AnchorQueries(Input):
    """Queries [B·groups, n, d] in training, [B, n, d] otherwise (the first group)."""

    def __init__(self, config: AnchorQueriesConfig) -> None:
        super().__init__()
        self.config = config
        self.anchors = AnchorBoxes(config.n, config.groups)
        self.vectors = LearnedTokens(config.groups * config.n, config.d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        cells = run.tokens[self.config.source].pad()
        n = self.config.n * (self.config.groups if self.training else 1)
        boxes = self.anchors()[:n]
        x = sample_grid(cells, boxes.sigmoid()[:, :2]) + self.vectors()[:n]
        at = boxes.expand(len(x), -1, -1).unflatten(1, (-1, self.config.n)).flatten(0, 1)  # [B·groups, n, 4]
        return Tokens(x.unflatten(1, (-1, self.config.n)).flatten(0, 1), positions=at)


def sample_grid(cells: Tokens, points: Tensor) -> Tensor:
    """Sample a token grid bilinearly at points [n, 2] (x, y in 0…1 of the real part): [B, n, d]."""
    assert cells.grid is not None
    rows, columns = cells.grid
    image = cells.x.transpose(1, 2).unflatten(2, (rows, columns))
    at = points.to(cells.x.dtype).expand(cells.x.shape[0], -1, -1)
    if cells.mask is not None:
        real = cells.mask.unflatten(1, (rows, columns))
        across, down = real.any(1).sum(1) / columns, real.any(2).sum(1) / rows
        at = at * torch.stack([across, down], dim=-1)[:, None].to(at.dtype)
    found = F.grid_sample(image, at[:, None] * 2 - 1, padding_mode="border", align_corners=False)
    return found[:, :, 0].transpose(1, 2)


class ZeroLinear(Linear):
    """Zero-initialized linear layer: at first it changes nothing."""

    def reset(self, std: float) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class BoxOffsets(nn.Module):
    """How far every block moves its queries' boxes."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.boxes = nn.ModuleList([Linear(d_model, d_model), Linear(d_model, d_model), ZeroLinear(d_model, 4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.boxes[:-1]:
            x = F.relu(layer(x))
        return self.boxes[-1](x)


class BoxEmbedding(nn.Module):
    """Boxes [B, n, 4] as vectors that attention adds to the queries."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.code = nn.ModuleList([Linear(2 * d_model, d_model), Linear(d_model, d_model)])

    def forward(self, boxes: Tensor, dtype: torch.dtype) -> Tensor:
        first, last = self.code
        return last(F.relu(first(box_sinusoids(boxes, self.d_model).to(dtype))))
