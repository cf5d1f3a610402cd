"""Box operations: formats, overlap, and degenerate boxes.

"cxcywh": center x, center y, width, height (DETR).  "xyxy": left, top, right, bottom.  "xywh": left, top, width,
height (COCO's files). All functions accept any leading dimensions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

BoxFormat = Literal["cxcywh", "xyxy", "xywh"]
TINY = 1e-12  # avoids 0 / 0 for empty boxes


def to_xyxy(boxes: Tensor, format: BoxFormat = "cxcywh") -> Tensor:
    """Convert boxes […, 4] to left, top, right, bottom."""
    if format == "xyxy":
        return boxes
    place, size = boxes.split(2, dim=-1)
    start = place - size / 2 if format == "cxcywh" else place
    return torch.cat([start, start + size], dim=-1)


def to_cxcywh(boxes: Tensor, format: BoxFormat = "xyxy") -> Tensor:
    """Convert boxes […, 4] to center x, center y, width, height."""
    if format == "cxcywh":
        return boxes
    start, end = to_xyxy(boxes, format).split(2, dim=-1)
    return torch.cat([(start + end) / 2, end - start], dim=-1)


def to_xywh(boxes: Tensor, format: BoxFormat = "xyxy") -> Tensor:
    """Convert boxes […, 4] to left, top, width, height."""
    start, end = to_xyxy(boxes, format).split(2, dim=-1)
    return torch.cat([start, end - start], dim=-1)


def area(corners: Tensor) -> Tensor:
    """Area of boxes […, 4] in xyxy format; degenerate boxes have area 0."""
    width, height = (corners[..., 2:] - corners[..., :2]).clamp(min=0).unbind(-1)
    return width * height


def intersection_and_union(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection and union of xyxy boxes of broadcastable shapes: pairs [n, 4], or [n, 1, 4] and [m, 4]."""
    start = torch.maximum(a[..., :2], b[..., :2])
    end = torch.minimum(a[..., 2:], b[..., 2:])
    both = area(torch.cat([start, end], dim=-1))
    return both, area(a) + area(b) - both


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union; 0 if both boxes are empty."""
    both, union = intersection_and_union(a, b)
    return both / union.clamp(min=TINY)


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """Generalized IoU (Rezatofighi et al. 2019), from -1 to 1: IoU minus the fraction of the smallest enclosing box
    that neither box covers. It has a gradient for disjoint boxes too.
    """
    both, union = intersection_and_union(a, b)
    start = torch.minimum(a[..., :2], b[..., :2])
    end = torch.maximum(a[..., 2:], b[..., 2:])
    hull = area(torch.cat([start, end], dim=-1))
    return both / union.clamp(min=TINY) - (hull - union) / hull.clamp(min=TINY)


def is_degenerate(corners: Tensor) -> Tensor:
    """Whether boxes have no width or height, or hold NaN or infinity."""
    return ~((corners[..., 2:] > corners[..., :2]).all(dim=-1) & corners.isfinite().all(dim=-1))


def not_suppressed(corners: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Class-wise non-maximum suppression of boxes [n, 4] by descending score; return the mask [n] of kept boxes. A box
    is dropped if its IoU with a kept box of its class and higher score is above the threshold.
    """
    near = ((iou(corners[:, None], corners) > threshold) & (labels[:, None] == labels)).cpu().numpy()
    keep = np.ones(len(near), dtype=bool)
    for i in range(len(near)):
        if keep[i]:
            keep[i + 1 :] &= ~near[i, i + 1 :]
    return torch.from_numpy(keep).to(corners.device)


def clip(corners: Tensor, height: float, width: float) -> Tensor:
    """Clip boxes to an image."""
    limit = corners.new_tensor([width, height, width, height])
    return corners.clamp(min=0).minimum(limit)
