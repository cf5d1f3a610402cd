"""Bipartite matching of queries and objects, one to one at minimal cost (Carion et al. 2020, §3.1).

Costs of all decoder layers and images are computed on the model's device and copied to the host at once; scipy solves
the assignments there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.config import Settings
from anyformer.errors import InputError
from anyformer.forward_context import IGNORED
from anyformer.heads.box_ops import generalized_iou, to_xyxy

NOT_A_COLUMN = float("nan")  # cost of padding objects
FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0  # Lin et al. 2017


@dataclass(frozen=True, eq=False)
class DetectionTargets:
    """The objects of each image, padded to equal number: `classes` [B, N] with -100 for padding, `boxes` [B, N, 4] as
    center x, center y, width, height, relative to the image.
    """

    classes: Tensor
    boxes: Tensor

    @property
    def real(self) -> Tensor:
        return self.classes != IGNORED

    @classmethod
    def of(cls, labels: Any, n_labels: int, device: torch.device, rows: int) -> DetectionTargets:
        """Convert labels in transformers' format: a list with {"class_labels": [n], "boxes": [n, 4]} per image."""
        if isinstance(labels, DetectionTargets):
            return labels
        found = [_row(label, i, n_labels) for i, label in enumerate(_list(labels))]
        if len(found) != rows:
            raise InputError(f"There are labels for {len(found)} images but {rows} images; give one entry per image.")
        return cls._fill(found, device)

    @classmethod
    def _fill(cls, rows: list[tuple[Tensor, Tensor]], device: torch.device) -> DetectionTargets:
        longest = max((len(classes) for classes, _ in rows), default=0)
        found = torch.full((len(rows), longest), IGNORED, dtype=torch.long, device=device)
        boxes = torch.zeros(len(rows), longest, 4, device=device)
        for row, (classes, places) in enumerate(rows):
            found[row, : len(classes)] = classes.to(device)
            boxes[row, : len(classes)] = places.to(boxes)
        return cls(found, boxes)


def _list(labels: Any) -> list[Any]:
    if isinstance(labels, (list, tuple)) and all(isinstance(label, dict) for label in labels):
        return list(labels)
    raise InputError('labels must be a list with one {"class_labels": [n], "boxes": [n, 4]} per image.')


def _row(label: dict[str, Any], i: int, n_labels: int) -> tuple[Tensor, Tensor]:
    classes, boxes = label.get("class_labels"), label.get("boxes")
    if not isinstance(classes, Tensor) or not isinstance(boxes, Tensor):
        raise InputError(f'labels[{i}] must have tensors "class_labels" and "boxes"; it has: {", ".join(label)}.')
    if boxes.shape != (len(classes), 4):
        shape = list(boxes.shape)
        raise InputError(f"labels[{i}] has {len(classes)} class_labels and boxes of shape {shape}; it must be [n, 4].")
    if not classes.is_cuda and len(classes):
        if int(classes.min()) < 0 or int(classes.max()) >= n_labels:
            worst = int(classes.min()) if int(classes.min()) < 0 else int(classes.max())
            raise InputError(f"labels[{i}] has class {worst}; the model has classes 0 to {n_labels - 1}.")
        if not bool((boxes[:, 2:] >= 0).all()):  # also catches NaN
            raise InputError(
                f"labels[{i}] has a box with an invalid width or height; boxes hold center x, center y, width, height."
            )
    return classes, boxes


@dataclass(frozen=True, kw_only=True)
class SetCriterionConfig(Settings):
    """Matching costs, and weights of the losses of matched pairs."""

    class_cost: float = 1.0
    box_cost: float = 5.0
    giou_cost: float = 2.0
    class_weight: float = 1.0
    box_weight: float = 5.0
    giou_weight: float = 2.0
    no_object_weight: float = 0.1  # class weight of "no object", which most queries predict
    focal: bool = False  # sigmoid focal loss per class, without "no object" (Lin et al. 2017; Zhu et al. 2021)

    def check(self) -> None:
        some = any((self.class_cost, self.box_cost, self.giou_cost))
        self.require(some, "class_cost, box_cost and giou_cost are all 0; set at least one above 0.")


@torch.no_grad()
def match_costs(logits: Tensor, boxes: Tensor, targets: DetectionTargets, config: SetCriterionConfig) -> Tensor:
    """Costs [L, B, Q, N] from logits [L, B, Q, C] and boxes [L, B, Q, 4]; NaN for padding objects."""
    wanted = targets.classes.clamp(min=0)[None, :, None].expand(*logits.shape[:3], -1)
    found, real = boxes[..., None, :], targets.boxes[None, :, None]  # [L, B, Q, 1, 4] and [1, B, 1, N, 4]
    cost = config.class_cost * class_cost(logits, config.focal).gather(-1, wanted)
    cost = cost + config.box_cost * (found - real).abs().sum(-1)
    cost = cost - config.giou_cost * generalized_iou(to_xyxy(found), to_xyxy(real))
    most = torch.finfo(cost.dtype).max
    cost = cost.nan_to_num(nan=most, posinf=most, neginf=most)
    return cost.masked_fill(~targets.real[None, :, None], NOT_A_COLUMN)


def class_cost(logits: Tensor, focal: bool) -> Tensor:
    """Negative class probability; with `focal`, the change of the focal loss (Zhu et al. 2021)."""
    if not focal:
        return -logits.log_softmax(-1).exp()
    p = logits.sigmoid()
    yes = FOCAL_ALPHA * (1 - p) ** FOCAL_GAMMA * -(p + 1e-8).log()
    return yes - (1 - FOCAL_ALPHA) * p**FOCAL_GAMMA * -(1 - p + 1e-8).log()


@torch.library.custom_op("anyformer::assign", mutates_args=())  # opaque to the compiler
def linear_assignment(cost: Tensor) -> Tensor:
    """Return the query of each object [L, B, N]; -1 for padding, or if there are too few queries."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise InputError("The set loss needs scipy: pip install 'anyformer[detect]'.") from None
    host = cost.cpu().numpy()
    layers, batch, _, most = host.shape
    found = np.full((layers, batch, most), -1, dtype=np.int64)
    for layer in range(layers):
        for row in range(batch):
            real = np.flatnonzero(~np.isnan(host[layer, row, 0]))  # padding objects may stand anywhere
            if len(real):
                queries, objects = linear_sum_assignment(host[layer, row][:, real])
                found[layer, row, real[objects]] = queries
    return torch.from_numpy(found).to(cost.device, non_blocking=True)


@linear_assignment.register_fake
def _(cost: Tensor) -> Tensor:
    layers, batch, _, most = cost.shape
    return cost.new_empty((layers, batch, most), dtype=torch.long)
