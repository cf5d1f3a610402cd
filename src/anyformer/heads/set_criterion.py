"""Set prediction loss: matched queries learn their object's class and box, all others "no object"."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.heads.box_ops import generalized_iou, to_xyxy
from anyformer.heads.matcher import (
    FOCAL_ALPHA,
    FOCAL_GAMMA,
    DetectionTargets,
    SetCriterionConfig,
    linear_assignment,
    match_costs,
)

CLASS, BOX, GIOU, COUNT = "loss_ce", "loss_bbox", "loss_giou", "cardinality_error"  # names in transformers


def set_loss(
    logits: Tensor, boxes: Tensor, targets: DetectionTargets, config: SetCriterionConfig, groups: int = 1
) -> dict[str, Tensor]:
    """Return the losses, each [L], of logits [L, B·groups, Q, C] and boxes [L, B·groups, Q, 4]; every layer and group
    of queries is matched separately.
    """
    logits, boxes = _group(logits.float(), groups), _group(boxes.float(), groups)
    parts = _set_loss(logits, boxes, targets, config)
    return parts if groups == 1 else {name: part.unflatten(0, (-1, groups)).mean(1) for name, part in parts.items()}


def _group(x: Tensor, groups: int) -> Tensor:
    """[L, B·groups, Q, d] -> [L·groups, B, Q, d]."""
    return x if groups == 1 else x.unflatten(1, (-1, groups)).transpose(1, 2).flatten(0, 1)


def _set_loss(
    logits: Tensor, boxes: Tensor, targets: DetectionTargets, config: SetCriterionConfig
) -> dict[str, Tensor]:
    if targets.classes.shape[1] == 0:  # no image has objects
        match = torch.zeros(*logits.shape[:2], 0, dtype=torch.long, device=logits.device)
    else:
        match = linear_assignment(match_costs(logits, boxes, targets, config))
    count = targets.real.sum().clamp(min=1)
    return {
        CLASS: class_loss(logits, match, targets, config, count),
        **box_losses(boxes, match, targets, count),
        COUNT: cardinality_error(logits.detach(), targets, config.focal),
    }


def class_loss(
    logits: Tensor, match: Tensor, targets: DetectionTargets, config: SetCriterionConfig, count: Tensor
) -> Tensor:
    no_object = logits.shape[-1] - (0 if config.focal else 1)
    wanted = target_classes(logits, match, targets, no_object)
    if config.focal:
        return focal_loss(logits, wanted).sum(dim=(1, 2, 3)) / count
    weight = torch.where(wanted == no_object, config.no_object_weight, 1.0)
    surprise = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view_as(weight) * weight
    return surprise.sum(dim=(1, 2)) / weight.sum(dim=(1, 2))


def target_classes(logits: Tensor, match: Tensor, targets: DetectionTargets, no_object: int) -> Tensor:
    """Class of the object matched to each query [L, B, Q], or `no_object`."""
    layers, batch, queries = logits.shape[:3]
    wanted = torch.full((layers, batch, queries + 1), no_object, device=logits.device)  # and unmatched objects
    classes = targets.classes.expand(layers, -1, -1)
    return wanted.scatter(2, match.where(match >= 0, queries), classes)[..., :queries]


def focal_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Sigmoid cross entropy per class, down-weighted for confident predictions (Lin et al. 2017)."""
    yes = (wanted[..., None] == torch.arange(logits.shape[-1], device=logits.device)).to(logits.dtype)
    p = logits.sigmoid()
    missed = p * (1 - yes) + (1 - p) * yes
    share = FOCAL_ALPHA * yes + (1 - FOCAL_ALPHA) * (1 - yes)
    return share * missed**FOCAL_GAMMA * F.binary_cross_entropy_with_logits(logits, yes, reduction="none")


def box_losses(boxes: Tensor, match: Tensor, targets: DetectionTargets, count: Tensor) -> dict[str, Tensor]:
    """L1 and generalized IoU losses, summed over matched objects."""
    has_query = match >= 0
    found = boxes.gather(2, match.clamp(min=0)[..., None].expand(-1, -1, -1, 4))  # [L, B, N, 4]
    wanted = targets.boxes.to(boxes).expand_as(found)
    apart = (found - wanted).abs().sum(-1)
    missing = 1 - generalized_iou(to_xyxy(found), to_xyxy(wanted))
    parts = {BOX: apart, GIOU: missing}
    return {name: (value * has_query).sum(dim=(1, 2)) / count for name, value in parts.items()}


def cardinality_error(logits: Tensor, targets: DetectionTargets, focal: bool) -> Tensor:
    """Error in the number of objects; a metric without gradient."""
    says = (logits > 0).any(-1) if focal else logits.argmax(-1) != logits.shape[-1] - 1
    return (says.sum(-1) - targets.real.sum(-1)).abs().float().mean(dim=1)


def weighted_sum(parts: dict[str, Tensor], config: SetCriterionConfig) -> Tensor:
    """Weighted loss of each layer [L]."""
    return config.class_weight * parts[CLASS] + config.box_weight * parts[BOX] + config.giou_weight * parts[GIOU]


def named_losses(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name the losses as transformers does: those of the last layer by name, those of the others with their number."""
    last = {name: value[-1] for name, value in parts.items()}
    layers = len(parts[CLASS]) - 1
    return {**last, **{f"{name}_{i}": value[i] for i in range(layers) for name, value in parts.items()}}
