"""The training loop: batches in, loss, clip, step, schedule, and a word of progress after every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.config import Settings
from anyformer.errors import InputError
from anyformer.heads.base import IGNORED
from anyformer.model import Model
from anyformer.train.optim import adamw, inverse_sqrt

Batch = Mapping[str, Any]
Loss = Callable[[Model, Batch], Tensor]

SMOOTH = 0.95  # how slowly the loss on display follows the loss of the last batch


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    steps: int
    lr: float  # at the end of the warm-up
    warmup: int = 4000
    clip: float = 1.0  # the largest norm of all gradients together
    weight_decay: float = 0.0
    seed: int = 0  # of dropout; the order of the batches is the caller's

    def check(self) -> None:
        self.require(self.steps > 0, f"steps is {self.steps}; it must be 1 or more.")
        self.require(self.warmup > 0, f"warmup is {self.warmup}; it must be 1 or more.")


@dataclass
class Progress:
    """Where a run stands, for whoever shows it."""

    steps: int
    step: int = 0
    loss: float = float("nan")
    tokens: int = 0
    started: float = field(default_factory=time.perf_counter)

    def advance(self, loss: float, tokens: int) -> None:
        self.step += 1
        self.tokens += tokens
        self.loss = loss if self.step == 1 else SMOOTH * self.loss + (1 - SMOOTH) * loss

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        return self.seconds * (self.steps - self.step) / max(self.step, 1)


def train(
    model: Model,
    batches: Iterable[Batch],
    loss: Loss,
    settings: TrainSettings,
    on_step: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train `model` in place for `settings.steps` batches and leave it ready for use (dropout off)."""
    torch.manual_seed(settings.seed)
    optimizer = adamw(model, settings.lr, settings.weight_decay)
    progress = Progress(settings.steps)
    model.train()
    try:
        for step, batch in zip(range(1, settings.steps + 1), batches, strict=False):
            lr = inverse_sqrt(step, settings.lr, settings.warmup)
            value = train_step(model, batch, loss, optimizer, lr, settings.clip)
            progress.advance(value, count_tokens(batch))
            if on_step is not None:
                on_step(progress)
    finally:
        model.eval()
    if progress.step < settings.steps:
        raise InputError(f"The batches ran out after {progress.step} of {settings.steps} steps.")
    return progress


def train_step(
    model: Model, batch: Batch, loss: Loss, optimizer: torch.optim.Optimizer, lr: float, clip: float
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr
    value = loss(model, batch)
    optimizer.zero_grad()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return float(value.detach())


def count_tokens(batch: Batch) -> int:
    """The tokens that the model had to say."""
    return int((batch["labels"] != IGNORED).sum())
