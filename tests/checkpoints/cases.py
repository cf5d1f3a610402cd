"""What every oracle's batch is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]


def ids(*shape: int, high: int = 60) -> Tensor:
    return torch.randint(1, high, shape)


def ragged(rows: int, length: int) -> Tensor:
    """A right-padded mask with uneven rows, the first one full."""
    lengths = torch.tensor([length, *torch.randint(1, length, (rows - 1,)).tolist()])
    return (torch.arange(length) < lengths[:, None]).long()


@dataclass(frozen=True)
class Case:
    """A batch for an architecture, and which output fields have padding where."""

    batch: Batch
    masks: dict[str, Tensor]  # field -> [B, T] of what counts
