"""Metrics of semantic segmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pixel_confusion(found: Any, right: Any, n: int, ignore: int) -> NDArray[np.int64]:
    """Confusion matrix of pixels [true class, predicted class]; pixels with label `ignore` are left out."""
    counts = np.asarray(right) != ignore
    pairs = np.asarray(right)[counts].astype(np.int64) * n + np.asarray(found)[counts]
    return np.bincount(pairs, minlength=n * n).reshape(n, n)


def segmentation_metrics(counts: NDArray[np.int64]) -> dict[str, float]:
    """Return `mean_iou` over predicted or true classes, `pixel_accuracy`, and `mean_accuracy` over the true classes."""
    hits, true, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    union = true + predicted - hits
    present, real = union > 0, true > 0
    return {
        "mean_iou": float((hits[present] / union[present]).mean()) if present.any() else float("nan"),
        "pixel_accuracy": float(hits.sum() / max(counts.sum(), 1)),
        "mean_accuracy": float((hits[real] / true[real]).mean()) if real.any() else float("nan"),
    }
