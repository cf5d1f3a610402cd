"""Distance metrics of keypoints."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ENOUGH = 0.2  # fraction of the reference length below which a keypoint is correct


def distances(found: Array, right: Array) -> Array:
    """Distances [n, keypoints] between points [n, keypoints, 2]."""
    apart: Array = np.linalg.norm(found - right, axis=-1)
    return apart


def mean_error(apart: Array, counts: Array) -> float:
    """Mean distance of the keypoints that count."""
    return float((apart * counts).sum() / max(counts.sum(), 1))


def normalized_mean_error(apart: Array, counts: Array, lengths: Array) -> float:
    """Mean over images of the mean distance divided by the image's reference length. Images without a length or without
    keypoints that count are left out.
    """
    n = counts.sum(axis=1)
    usable = (lengths > 0) & (n > 0)
    if not usable.any():
        return float("nan")
    each = (apart * counts).sum(axis=1)[usable] / n[usable] / lengths[usable]
    return float(each.mean())


def pck(apart: Array, counts: Array, lengths: Array, enough: float = ENOUGH) -> float:
    """PCK: fraction of keypoints closer than `enough` times their image's reference length (Yang and Ramanan 2013)."""
    right = (apart <= enough * lengths[:, None]) * counts * (lengths > 0)[:, None]
    return float(right.sum() / max((counts * (lengths > 0)[:, None]).sum(), 1))
