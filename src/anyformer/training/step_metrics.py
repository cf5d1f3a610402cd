"""The figures of each step, read when they are there: at once on a CPU, a step later on a GPU, which is not kept
waiting for anyone to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepMetrics:
    step: int
    rows: Sequence[int]
    lr: float
    loss: float
    tokens: int
    slots: int
    norm: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pending:
    step: int
    rows: Sequence[int]
    lr: float
    names: list[str]
    values: Tensor  # on the CPU, or on its way there
    there: Any  # a CUDA event

    def read(self) -> StepMetrics:
        if self.there is not None:
            self.there.synchronize()
        total, count, tokens, slots, norm, *parts = self.values.tolist()
        each = {name: value / max(count, 1e-30) for name, value in zip(self.names, parts, strict=True)}
        loss = total / count if count else total
        return StepMetrics(self.step, self.rows, self.lr, loss, int(tokens), int(slots), norm, each)


class MetricsReader:
    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.pending: list[_Pending] = []

    def push(self, step: int, rows: Sequence[int], lr: float, metrics: Tensor, parts: dict[str, Tensor]) -> None:
        """`figures`: [total, count, tokens, slots, norm]."""
        values = torch.cat([metrics, *(value.reshape(1) for value in parts.values())])
        there = None
        if self.cuda:
            values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            there = torch.cuda.Event()
            there.record()
        self.pending.append(_Pending(step, rows, lr, list(parts), values, there))

    def ready(self, everything: bool = False) -> Iterator[StepMetrics]:
        wait = 1 if self.cuda and not everything else 0
        while len(self.pending) > wait:
            yield self.pending.pop(0).read()
