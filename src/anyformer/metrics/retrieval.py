"""How far down the list the right answer stands, when answers are ordered by score."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

ROUNDING = 1e-6  # cosines that differ by less are equal


def ranks(scores: Tensor, right: Tensor, rivals: Tensor) -> Tensor:
    """The rank [n] of each query's right answer, from 1. `scores` [n, m] are those of all answers, `right` [n] that of
    the right one, `rivals` [n, m] says which answers are wrong. Ties count against: an equal rival is ahead. A right
    answer whose score is NaN is never found: its rank is infinite."""
    ahead = (rivals & ~(scores < right[:, None] - ROUNDING)).sum(dim=1)
    return torch.where(right.isnan(), math.inf, ahead + 1.0)


def warn_of_nan(*vectors: Tensor) -> None:
    """Say how many of the vectors [n, d] hold NaN."""
    broken = sum(int(some.isnan().any(dim=1).sum()) for some in vectors)
    if broken:
        count = sum(len(some) for some in vectors)
        warnings.warn(f"{broken:,} of {count:,} vectors are NaN; they count as not found.", stacklevel=3)
