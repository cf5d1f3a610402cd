"""Queries that are boxes: each starts somewhere, and every decoder layer moves it (DAB-DETR, Liu et al. 2022).

What a query looks for is told by its place: sines and cosines of the box, which attention adds to it as DETR adds its
learned vectors. Its content starts as what the encoder saw at the middle of the box (as in two-stage detectors), and
each layer's correction to the box is learned, so that the loss of a layer is about small steps.

`AnchorQueries` is the input that makes the queries, `BoxRefinement` what stands between the decoder's blocks.
The boxes after each block, as numbers before the sigmoid, are in the tokens' memo under "boxes"; the
first are the anchors themselves.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens
from anyformer.tokens import Tokens

BOXES = "boxes"
START = 0.15  # the width and height of a fresh anchor, as a share of the image's


def box_sinusoids(places: Tensor, d_model: int) -> Tensor:
    """[…, n] of numbers in 0…1 -> […, n·d/2], by the rates that DETR gives to the cells of an image."""
    half = d_model // 2
    exponents = torch.arange(half // 2, device=places.device, dtype=torch.float32) * (2 / half)
    angles = places.float().unsqueeze(-1) * (2 * math.pi) / 10_000**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-3)


class AnchorBoxes(nn.Module):
    """The anchors of all groups, before the sigmoid: fresh, an even grid over the image."""

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


@dataclass(frozen=True, kw_only=True)
class AnchorQueriesConfig(Settings):
    n: int
    d_model: int
    source: str  # the stage whose tokens are cells of the image
    groups: int = 1  # so many sets of anchors while training, each matched by itself (Group DETR, Chen et al. 2023)


class AnchorQueries(Input):
    """[B·groups, n, d] in training, [B, n, d] else: of the groups, the first is the model's."""

    def __init__(self, config: AnchorQueriesConfig) -> None:
        super().__init__()
        self.config = config
        self.anchors = AnchorBoxes(config.n, config.groups)
        self.vectors = LearnedTokens(config.groups * config.n, config.d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        cells = run.tokens[self.config.source].pad()
        n = self.config.n * (self.config.groups if self.training else 1)
        boxes = self.anchors.weight[:n]
        x = sample_grid(cells, boxes.sigmoid()[:, :2]) + self.vectors.weight[:n]
        at = boxes.expand(len(x), -1, -1).unflatten(1, (-1, self.config.n)).flatten(0, 1)  # [B·groups, n, 4]
        return Tokens(x.unflatten(1, (-1, self.config.n)).flatten(0, 1), memo={BOXES: [at]})


def sample_grid(cells: Tokens, points: Tensor) -> Tensor:
    """[B, n, d]: what a grid of tokens holds at points [n, 2] (x, y in 0…1 of the real part), between its cells."""
    assert cells.grid is not None
    rows, columns = cells.grid
    picture = cells.x.transpose(1, 2).unflatten(2, (rows, columns))
    at = points.to(cells.x.dtype).expand(cells.x.shape[0], -1, -1)
    if cells.mask is not None:
        real = cells.mask.unflatten(1, (rows, columns))
        across, down = real.any(1).sum(1) / columns, real.any(2).sum(1) / rows
        at = at * torch.stack([across, down], dim=-1)[:, None].to(at.dtype)
    found = F.grid_sample(picture, at[:, None] * 2 - 1, padding_mode="border", align_corners=False)
    return found[:, :, 0].transpose(1, 2)


class ZeroLinear(Linear):
    """Fresh, it moves nothing: the first guess is where things start."""

    def reset(self, std: float) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class BoxRefinement(nn.Module):
    """Before every block and after the last: move the boxes, and tell attention where they are now."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.boxes = nn.ModuleList([Linear(d_model, d_model), Linear(d_model, d_model), ZeroLinear(d_model, 4)])
        self.code = nn.ModuleList([Linear(2 * d_model, d_model), Linear(d_model, d_model)])

    def forward(self, tokens: Tokens, layer: int) -> Tokens:
        boxes: list[Tensor] = tokens.memo[BOXES]
        if layer > 0:
            boxes.append(boxes[-1].detach() + self._step(tokens.x).float())
        first, last = self.code
        at = box_sinusoids(boxes[-1].detach().sigmoid() if layer else boxes[-1].sigmoid(), self.d_model).to(
            tokens.x.dtype
        )
        return dataclasses.replace(tokens, pos_embed=last(F.relu(first(at))))

    def _step(self, x: Tensor) -> Tensor:
        for layer in self.boxes[:-1]:
            x = F.relu(layer(x))
        return self.boxes[-1](x)
