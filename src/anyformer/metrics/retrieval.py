"""Retrieval metrics: the rank of the correct answer by score."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

ROUNDING = 1e-6  # cosines that differ by less count as equal


def ranks(scores: Tensor, right: Tensor, rivals: Tensor) -> Tensor:
    """Rank [n] of each query's correct answer, from 1.

    `scores` [n, m] are those of all answers, `right` [n] that of the correct one, `rivals` [n, m] marks wrong answers.
    Wrong answers with equal scores rank ahead; a correct answer with score NaN has infinite rank.
    """
    ahead = (rivals & ~(scores < right[:, None] - ROUNDING)).sum(dim=1)
    return torch.where(right.isnan(), math.inf, ahead + 1.0)


def warn_of_nan(*vectors: Tensor) -> None:
    """Warn about vectors [n, d] that hold NaN."""
    broken = sum(int(some.isnan().any(dim=1).sum()) for some in vectors)
    if broken:
        count = sum(len(some) for some in vectors)
        warnings.warn(f"{broken:,} of {count:,} vectors are NaN; they count as not found.", stacklevel=3)
