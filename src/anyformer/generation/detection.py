"""Decoding a set: every learned query answers at once with a class and what its head adds, or with "nothing there".

found = model.detect(pixel_values=images, target_sizes=[(480, 640)], threshold=0.7)
found[0].labels, found[0].scores, found[0].boxes        # of the first image, the surest first
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

if TYPE_CHECKING:  # the model imports this module, when it is asked to find things
    from anyformer.model import Model

Sizes = Tensor | Sequence[tuple[int, int]]


def detect(model: Model, *, threshold: float = 0.5, target_sizes: Sizes | None = None, **batch: Any) -> list[Output]:
    """What each row of the batch holds: `labels`, `scores`, the `queries` that found it, and the head's own values.

    Only what is likelier than `threshold` counts. `target_sizes` are the images' heights and widths, where values are
    wanted in pixels instead of 0…1.
    """
    head = detection_head(model)
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold is {threshold}; it must be between 0 and 1.")
    return postprocess(head, model(**batch), threshold, target_sizes)


def detection_head(model: Model) -> Head:
    heads = cast("list[Head]", list(model.heads.values()))
    head = next((head for head in heads if head.score_field is not None), None)
    if head is None:
        raise InputError(f"This {model.family} model has no queries that find things; a detector such as DETR has.")
    return head


def postprocess(head: Head, out: Output, threshold: float, target_sizes: Sizes | None = None) -> list[Output]:
    """The same of what a model has said already."""
    assert head.score_field is not None
    scores = out[head.score_field].log_softmax(-1).exp()[..., :-1]  # the last class is "nothing there"
    sizes = None if target_sizes is None else as_sizes(target_sizes, scores)
    best, labels = scores.max(dim=-1)  # [B, Q]
    slots = {"labels": labels, "scores": best, **head.postprocess(out, sizes)}
    return [
        select_detections({name: value[row] for name, value in slots.items()}, threshold) for row in range(len(best))
    ]


def as_sizes(given: Sizes, like: Tensor) -> Tensor:
    """[B, 2]: height and width."""
    sizes = torch.as_tensor(given).to(like)
    if sizes.shape != (like.shape[0], 2):
        raise InputError(
            f"target_sizes has shape {list(sizes.shape)}; it must be [{like.shape[0]}, 2]: height and width of each."
        )
    return sizes


def tidy(found: Output, size: tuple[int, int], nms: float = 1.0) -> Output:
    """What was found in an image of `size` (height, width), with boxes in pixels cut to it: without those that lie
    outside, and without the less sure of two of one class whose IoU is above `nms`."""
    inside = clip(found.boxes, *size)
    stay = ~is_degenerate(inside)
    kept = Output({**{name: value[stay] for name, value in found.items()}, "boxes": inside[stay]})
    if nms >= 1:
        return kept
    chosen = not_suppressed(kept.boxes, kept.labels, nms)
    return Output({name: value[chosen] for name, value in kept.items()})


def select_detections(slots: dict[str, Tensor], threshold: float) -> Output:
    """Those above the threshold, the surest first; of equals, the first query."""
    order = slots["scores"].argsort(descending=True, stable=True)
    order = order[slots["scores"][order] > threshold]
    return Output({**{name: value[order] for name, value in slots.items()}, "queries": order})
