"""What all tasks share."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A loss as sums, so that many batches and many devices can add theirs before anything is divided."""

    total: Tensor
    count: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
