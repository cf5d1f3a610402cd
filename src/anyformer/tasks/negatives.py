"""In-batch negatives over all processes: a row competes with the rows of every process, as in one large batch.

Batches are cut into equal parts for the processes of torchrun. A loss that compares rows gathers the vectors of all
processes, gradients included, so that the number of processes changes the speed and not the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from anyformer.tasks.base import Batch

REPEATED = "repeated"  # in the batch of a process that has no row of its own, and repeats one at weight 0


@dataclass(frozen=True)
class Everyone:
    """Rows [n, d] of all processes; this one's begin at `start`."""

    rows: Tensor
    start: int

    def own(self, n: int) -> Tensor:
        """The places of this process's `n` rows. One that only repeats a row has none, and takes any."""
        return (self.start + torch.arange(n, device=self.rows.device)).clamp(max=len(self.rows) - 1)


def is_shared(training: bool) -> bool:
    """Whether several processes take part in the loss. Evaluation is the first one's alone."""
    return training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def everyone(rows: Tensor, batch: Batch, training: bool) -> Everyone:
    """The rows of all processes, each of which calls this; of one process, its own."""
    if not is_shared(training):
        return Everyone(rows, 0)
    n = torch.tensor([0 if REPEATED in batch else len(rows)], device=rows.device)
    counts = [torch.empty_like(n) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, n)
    sizes = [int(count) for count in counts]
    gathered: Tensor = _Gather.apply(rows, sizes)
    return Everyone(gathered, sum(sizes[: dist.get_rank()]))


class _Gather(torch.autograd.Function):
    """Joins the rows of all processes; the gradient of a row is the sum of those that all processes have for it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int]) -> Tensor:
        rank = dist.get_rank()
        ctx.start, ctx.size, ctx.given = sum(sizes[:rank]), sizes[rank], rows.shape
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: sizes[rank]] = rows[: sizes[rank]]
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded)
        return torch.cat([part[:n] for part, n in zip(found, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        own = total.new_zeros(ctx.given)
        own[: ctx.size] = total[ctx.start : ctx.start + ctx.size]
        return own, None
