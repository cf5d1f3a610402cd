"""Boxes as numbers: their three spellings, how much two of them overlap, and which are none at all.

"cxcywh": center x, center y, width, height (DETR).  "xyxy": left, top, right, bottom.  "xywh": left, top, width,
height (COCO's files). All take any leading axes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

BoxFormat = Literal["cxcywh", "xyxy", "xywh"]
TINY = 1e-12  # an area that is nothing: keeps 0 / 0 from becoming no number


def to_xyxy(boxes: Tensor, format: BoxFormat = "cxcywh") -> Tensor:
    """[…, 4] as left, top, right, bottom."""
    if format == "xyxy":
        return boxes
    place, size = boxes.split(2, dim=-1)
    start = place - size / 2 if format == "cxcywh" else place
    return torch.cat([start, start + size], dim=-1)


def to_cxcywh(boxes: Tensor, format: BoxFormat = "xyxy") -> Tensor:
    """[…, 4] as center x, center y, width, height."""
    if format == "cxcywh":
        return boxes
    start, end = to_xyxy(boxes, format).split(2, dim=-1)
    return torch.cat([(start + end) / 2, end - start], dim=-1)


def to_xywh(boxes: Tensor, format: BoxFormat = "xyxy") -> Tensor:
    """[…, 4] as left, top, width, height."""
    start, end = to_xyxy(boxes, format).split(2, dim=-1)
    return torch.cat([start, end - start], dim=-1)


def area(corners: Tensor) -> Tensor:
    """Of a box whose corners are the wrong way round: 0."""
    width, height = (corners[..., 2:] - corners[..., :2]).clamp(min=0).unbind(-1)
    return width * height


def intersection_and_union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection and union of boxes as corners, of shapes that broadcast: pairs [n, 4], or [n, 1, 4] and [m, 4]."""
    start = torch.maximum(a[..., :2], b[..., :2])
    end = torch.minimum(a[..., 2:], b[..., 2:])
    both = area(torch.cat([start, end], dim=-1))
    return both, area(a) + area(b) - both


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union; 0 where both are empty."""
    both, union = intersection_and_union(a, b)
    return both / union.clamp(min=TINY)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU less the share of the smallest box around both that neither covers (Rezatofighi et al. 2019): in -1…1, and
    with a slope where two boxes do not touch."""
    both, union = intersection_and_union(a, b)
    start = torch.minimum(a[..., :2], b[..., :2])
    end = torch.maximum(a[..., 2:], b[..., 2:])
    hull = area(torch.cat([start, end], dim=-1))
    return both / union.clamp(min=TINY) - (hull - union) / hull.clamp(min=TINY)


def is_degenerate(corners: Tensor) -> Tensor:
    """Which boxes are none: without width or height, or not made of numbers."""
    return ~((corners[..., 2:] > corners[..., :2]).all(dim=-1) & corners.isfinite().all(dim=-1))


def not_suppressed(corners: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Class-wise non-maximum suppression of boxes [n, 4], the surest first: a mask [n] of those that stay. A box goes
    if its IoU with a surer one of its class that stays is above the threshold."""
    near = ((iou(corners[:, None], corners) > threshold) & (labels[:, None] == labels)).cpu().numpy()
    keep = np.ones(len(near), dtype=bool)
    for i in range(len(near)):
        if keep[i]:
            keep[i + 1 :] &= ~near[i, i + 1 :]
    return torch.from_numpy(keep).to(corners.device)


def clip(corners: Tensor, height: float, width: float) -> Tensor:
    """What of each box lies within an image."""
    limit = corners.new_tensor([width, height, width, height])
    return corners.clamp(min=0).minimum(limit)
