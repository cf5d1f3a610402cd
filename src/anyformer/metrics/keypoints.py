"""How far keypoints are from where they should be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ENOUGH = 0.2  # of the reference length: a keypoint that is closer is right


def distances(found: Array, right: Array) -> Array:
    """[n, keypoints] of places [n, keypoints, 2]."""
    apart: Array = np.linalg.norm(found - right, axis=-1)
    return apart


def mean_error(apart: Array, counts: Array) -> float:
    """The mean distance of the keypoints that count."""
    return float((apart * counts).sum() / max(counts.sum(), 1))


def normalized_mean_error(apart: Array, counts: Array, lengths: Array) -> float:
    """The mean over images of the mean distance divided by a length of the image's own; where that is 0 (or no
    joint counts) the image is left out."""
    n = counts.sum(axis=1)
    usable = (lengths > 0) & (n > 0)
    if not usable.any():
        return float("nan")
    each = (apart * counts).sum(axis=1)[usable] / n[usable] / lengths[usable]
    return float(each.mean())


def pck(apart: Array, counts: Array, lengths: Array, enough: float = ENOUGH) -> float:
    """PCK: the share of keypoints closer than `enough` times their image's reference length (Yang and Ramanan 2013)."""
    right = (apart <= enough * lengths[:, None]) * counts * (lengths > 0)[:, None]
    return float(right.sum() / max((counts * (lengths > 0)[:, None]).sum(), 1))
