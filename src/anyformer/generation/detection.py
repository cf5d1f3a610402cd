"""Detection by set prediction: every object query predicts a class or "no object", and the head's own values.

found = model.detect(pixel_values=images, target_sizes=[(480, 640)], threshold=0.7)
found[0].labels, found[0].scores, found[0].boxes        # of the first image, by descending score
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.forward_context import Output
from anyformer.heads.base import Head
from anyformer.heads.box_ops import clip, is_degenerate, not_suppressed

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

Sizes = Tensor | Sequence[tuple[int, int]]


def detect(model: Model, *, threshold: float = 0.5, target_sizes: Sizes | None = None, **batch: Any) -> list[Output]:
    """Return the detections of each row: `labels`, `scores`, `queries` (their indices) and the head's own values.

    Only scores above `threshold` are kept. `target_sizes` holds the (height, width) of each image and gives values in
    pixels; without it they are relative (0 to 1).
    """
    head = detection_head(model)
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold is {threshold}; it must be between 0 and 1.")
    return postprocess(head, model(**batch), threshold, target_sizes)


def detection_head(model: Model) -> Head:
    heads = cast("list[Head]", list(model.heads.values()))
    head = next((head for head in heads if head.score_field is not None), None)
    if head is None:
        raise InputError(f"This {model.family} model has no object queries; use a detector such as DETR.")
    return head


def postprocess(head: Head, out: Output, threshold: float, target_sizes: Sizes | None = None) -> list[Output]:
    """Return the detections in an output that the model already computed."""
    assert head.score_field is not None
    scores = out[head.score_field].log_softmax(-1).exp()[..., :-1]  # the last class is "no object"
    sizes = None if target_sizes is None else as_sizes(target_sizes, scores)
    best, labels = scores.max(dim=-1)  # [B, Q]
    slots = {"labels": labels, "scores": best, **head.postprocess(out, sizes)}
    return [
        select_detections({name: value[row] for name, value in slots.items()}, threshold) for row in range(len(best))
    ]


def as_sizes(given: Sizes, like: Tensor) -> Tensor:
    """Return image sizes as a tensor [B, 2]: height and width."""
    sizes = torch.as_tensor(given).to(like)
    if sizes.shape != (like.shape[0], 2):
        raise InputError(
            f"target_sizes has shape {list(sizes.shape)}; it must be [{like.shape[0]}, 2]: height and width."
        )
    return sizes


def tidy(found: Output, size: tuple[int, int], nms: float = 1.0) -> Output:
    """Clip boxes to an image of `size` (height, width) and drop degenerate ones. Of two boxes of one class whose IoU is
    above `nms`, drop the one with the lower score.
    """
    inside = clip(found.boxes, *size)
    stay = ~is_degenerate(inside)
    kept = Output({**{name: value[stay] for name, value in found.items()}, "boxes": inside[stay]})
    if nms >= 1:
        return kept
    chosen = not_suppressed(kept.boxes, kept.labels, nms)
    return Output({name: value[chosen] for name, value in kept.items()})


def select_detections(slots: dict[str, Tensor], threshold: float) -> Output:
    """Return the queries above the threshold by descending score; equal scores keep the order of the queries."""
    order = slots["scores"].argsort(descending=True, stable=True)
    order = order[slots["scores"][order] > threshold]
    return Output({**{name: value[order] for name, value in slots.items()}, "queries": order})
