"""COCO average precision of boxes (Lin et al. 2014): pycocotools if installed, and an equal NumPy implementation.

metrics = average_precision(predictions, targets)       # both: one entry per image
metrics["ap50"], metrics["ap"]
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Whole = NDArray[np.int64]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections that count, per image and class
AREAS = {"": (0.0, 1e10), "s": (0.0, 32.0**2), "m": (32.0**2, 96.0**2), "l": (96.0**2, 1e10)}  # in square pixels
NONE = -1.0  # COCO's value if there is no ground truth


@dataclass(frozen=True)
class PredictedBoxes:
    """Detections in one image: boxes [n, 4] as left, top, right, bottom in pixels."""

    labels: Whole
    scores: Floats
    boxes: Floats


@dataclass(frozen=True)
class GroundTruthBoxes:
    """Ground truth of one image. `crowd`: boxes around groups, which may be detected any number of times."""

    labels: Whole
    boxes: Floats
    areas: Floats
    crowd: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))

    @classmethod
    def of(cls, labels: Any, boxes: Any, areas: Any = None, crowd: Any = None) -> GroundTruthBoxes:
        """Convert arrays; areas default to those of the boxes."""
        corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
        sizes = area(corners) if areas is None else np.asarray(areas, dtype=np.float64)
        flags = np.zeros(len(corners), dtype=bool) if crowd is None else np.asarray(crowd, dtype=bool)
        return cls(np.asarray(labels, dtype=np.int64), corners, sizes, flags)


def area(boxes: Floats) -> Floats:
    sizes: Floats = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return sizes


def average_precision(
    predictions: Sequence[PredictedBoxes], targets: Sequence[GroundTruthBoxes], sizes: bool = True
) -> dict[str, float]:
    """Return ap, ap50, ap75 and, with `sizes`, those of small, medium and large objects: aps, apm, apl."""
    classes = sorted({int(label) for one in targets for label in one.labels})
    metrics: dict[str, float] = {}
    for name in AREAS if sizes else ("",):
        curves = [_curves(predictions, targets, label, AREAS[name]) for label in classes]
        known = [curve for curve in curves if curve is not None]
        table = np.stack(known) if known else None  # [classes, thresholds, recalls]
        metrics[f"ap{name}"] = NONE if table is None else float(table.mean())
        if not name:
            metrics["ap50"] = NONE if table is None else float(table[:, 0].mean())
            metrics["ap75"] = NONE if table is None else float(table[:, 5].mean())
    return metrics


def _curves(
    found: Sequence[PredictedBoxes], truth: Sequence[GroundTruthBoxes], label: int, within: tuple[float, float]
) -> Floats | None:
    """Return one class's precision at each recall, [thresholds, recalls]; None without ground truth."""
    pieces = [_judge(*pair, label, within) for pair in zip(found, truth, strict=True)]
    there = sum(piece.there for piece in pieces)
    if there == 0:
        return None
    scores = np.concatenate([piece.scores for piece in pieces])
    order = np.argsort(-scores, kind="mergesort")
    hit = np.concatenate([piece.hit for piece in pieces], axis=1)[:, order]
    left_out = np.concatenate([piece.left_out for piece in pieces], axis=1)[:, order]
    right, wrong = np.cumsum(hit & ~left_out, axis=1), np.cumsum(~hit & ~left_out, axis=1)
    recall = right / there
    precision = right / (right + wrong + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # best at this recall or higher
    curves = np.zeros((len(THRESHOLDS), len(RECALLS)))
    for row, (reached, value) in enumerate(zip(recall, precision, strict=True)):
        at = np.searchsorted(reached, RECALLS, side="left")
        inside = at < len(value)
        curves[row, inside] = value[at[inside]]
    return curves


@dataclass(frozen=True)
class _Judged:
    scores: Floats
    hit: Flags  # [thresholds, detections]
    left_out: Flags  # ignored: neither right nor wrong
    there: int  # ground truth objects that count


def _judge(found: PredictedBoxes, truth: GroundTruthBoxes, label: int, within: tuple[float, float]) -> _Judged:
    """Match detections, by descending score, to the unmatched object of highest IoU."""
    mine = np.flatnonzero(found.labels == label)
    mine = mine[np.argsort(-found.scores[mine], kind="mergesort")][:MOST]
    theirs = np.flatnonzero(truth.labels == label)
    ignored = truth.crowd[theirs] | outside(truth.areas[theirs], within)
    overlaps = overlap(found.boxes[mine], truth.boxes[theirs], truth.crowd[theirs])
    hit = np.zeros((len(THRESHOLDS), len(mine)), dtype=bool)
    left_out = np.zeros_like(hit)
    free = np.ones((len(THRESHOLDS), len(theirs)), dtype=bool)
    rows = np.arange(len(THRESHOLDS))
    limits = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    for answer, shares in enumerate(overlaps if len(theirs) else ()):
        may = (free | truth.crowd[theirs]) & (shares >= limits)
        some = may.any(axis=1)
        if not some.any():
            continue
        counts = may & ~ignored
        may = np.where(counts.any(axis=1, keepdims=True), counts, may)  # objects that count come first
        best = len(theirs) - 1 - np.argmax(np.where(may, shares, -1.0)[:, ::-1], axis=1)  # the last of equals
        hit[:, answer] = some
        left_out[:, answer] = some & ignored[best]
        free[rows[some], best[some]] = False
    left_out |= ~hit & outside(area(found.boxes[mine]), within)
    return _Judged(found.scores[mine], hit, left_out, int((~ignored).sum()))


def outside(areas: Floats, within: tuple[float, float]) -> Flags:
    return (areas < within[0]) | (areas > within[1])


def overlap(a: Floats, b: Floats, crowd: Flags) -> Floats:
    """IoU [n, m]; for a crowd in `b`, intersection over the area of `a`."""
    start = np.maximum(a[:, None, :2], b[None, :, :2])
    end = np.minimum(a[:, None, 2:], b[None, :, 2:])
    both = (end - start).clip(min=0).prod(axis=-1)
    union = np.where(crowd, area(a)[:, None], area(a)[:, None] + area(b) - both)
    shares: Floats = both / np.maximum(union, np.spacing(1))
    return shares


def coco_metrics(predictions: Sequence[PredictedBoxes], targets: Sequence[GroundTruthBoxes]) -> dict[str, float | str]:
    """Return COCO metrics by pycocotools with its signature, or by NumPy if it is not installed."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        return {
            **average_precision(predictions, targets),
            "signature": "COCO AP|100 answers|numpy (pycocotools is absent)",
        }
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        gold, detections = COCO(), COCO()
        gold.dataset = _dataset(targets)
        detections.dataset = {**gold.dataset, "annotations": list(_answers(predictions))}
        gold.createIndex()
        detections.createIndex()
        judge = COCOeval(gold, detections, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    names = ("ap", "ap50", "ap75", "aps", "apm", "apl", "ar1", "ar10", "ar100")
    metrics = {name: float(value) for name, value in zip(names, judge.stats, strict=False)}
    return {**metrics, "signature": f"COCO AP|100 answers|pycocotools {metadata.version('pycocotools')}"}


def _dataset(truth: Sequence[GroundTruthBoxes]) -> dict[str, Any]:
    numbers = itertools.count(1)
    annotations = [
        {
            "id": next(numbers),
            "image_id": image,
            "category_id": int(label),
            "bbox": _sizes(box),
            "area": float(size),
            "iscrowd": int(crowd),
        }
        for image, one in enumerate(truth)
        for label, box, size, crowd in zip(one.labels, one.boxes, one.areas, one.crowd, strict=True)
    ]
    classes = sorted({int(label) for one in truth for label in one.labels})
    return {
        "images": [{"id": image} for image in range(len(truth))],
        "categories": [{"id": label} for label in classes],
        "annotations": annotations,
    }


def _answers(found: Sequence[PredictedBoxes]) -> Iterable[dict[str, Any]]:
    numbers = itertools.count(1)
    for image, one in enumerate(found):
        for label, score, box in zip(one.labels, one.scores, one.boxes, strict=True):
            size = _sizes(box)
            yield {
                "id": next(numbers),
                "image_id": image,
                "category_id": int(label),
                "bbox": size,
                "score": float(score),
                "area": size[2] * size[3],
                "iscrowd": 0,
            }


def _sizes(box: Floats) -> list[float]:
    left, top, right, bottom = (float(side) for side in box)
    return [left, top, right - left, bottom - top]
