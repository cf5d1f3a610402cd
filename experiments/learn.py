"""One training loop for all experiments that train: the library's own engine, given batches that are drawn anew."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from anyformer.heads.cross_entropy import token_loss
from anyformer.model import Model
from anyformer.tasks.base import Loss
from anyformer.training.callbacks import Callback, Progress
from anyformer.training.settings import TrainSettings
from anyformer.training.trainer import DivergedError, train
from anyformer.training.work import Metrics
from frame import Pace

Batch = dict[str, Tensor]
Draw = Callable[[int, Generator], Batch]  # so many rows
Measure = Callable[[Model], dict[str, float]]
TEN = 10  # steps whose mean loss counts as reached
EPOCH = 1000  # batches; rows are drawn, so that an epoch means nothing


@dataclass
class Course:
    """How a run went: the loss of every step, what was measured on the way, and whether it blew up."""

    losses: list[float] = field(default_factory=list)
    measured: dict[int, dict[str, float]] = field(default_factory=dict)  # by step
    clock: list[float] = field(default_factory=list)  # processor seconds after every step, measuring not counted
    diverged: bool = False

    def loss(self, last: int = 50) -> float:
        """The mean of the last steps'; where it blew up, no number."""
        return math.nan if self.diverged else sum(self.losses[-last:]) / len(self.losses[-last:])

    def steps_to(self, loss: float) -> int | None:
        """The first step at which the mean of the last ten losses is that low; None: never."""
        for step in range(TEN, len(self.losses) + 1):
            if sum(self.losses[step - TEN : step]) <= loss * TEN:
                return step
        return None

    @property
    def last(self) -> dict[str, float]:
        """What was measured at the end."""
        return self.measured[max(self.measured)] if self.measured else {}


class _Enough(Exception):  # noqa: N818 - nothing went wrong
    """The loss is as low as was asked for."""


class Follower(Callback):
    """Writes the course of a run down, and says how far it is."""

    def __init__(self, course: Course, say: Callable[[str], None], until: float | None) -> None:
        super().__init__()
        self.course, self.say, self.until = course, say, until
        self.since = time.process_time()

    def on_step_end(self, progress: Progress) -> None:
        assert progress.metrics is not None
        course, now = self.course, time.process_time()
        course.losses.append(progress.metrics.loss)
        course.clock.append((course.clock[-1] if course.clock else 0.0) + now - self.since)
        self.since = now
        self.say(f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.3f}")
        if self.until is not None and sum(course.losses[-TEN:]) <= self.until * TEN and len(course.losses) >= TEN:
            raise _Enough

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if not isinstance(value, str)}
        self.course.measured[progress.step] = numbers
        self.since = time.process_time()


class Lesson:
    """What the engine is given to do. `labels` of the batch are compared with the model's logits, place by place."""

    metric, larger_is_better, slow, steady, streams = "none", True, False, False, 0
    contrastive = False

    def __init__(self, model: Model, draw: Draw, batch_size: int, smoothing: float, measure: Measure | None) -> None:
        self.model, self.draw, self.batch_size = model, draw, batch_size
        self.smoothing, self.measure = smoothing, measure

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return [range(self.batch_size)] * EPOCH

    def collate(self, rows: Sequence[int], generator: Generator) -> Batch:
        return self.draw(len(rows), generator)

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        return batch

    def loss(self, batch: Batch) -> Loss:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return Loss(*token_loss(self.model(**inputs).logits, batch["labels"], self.smoothing))

    def evaluate(self) -> dict[str, float | str]:
        return {} if self.measure is None else dict(self.measure(self.model))

    @property
    def fills(self) -> dict[str, int]:
        return {}

    def carry(self, rows: int) -> dict[str, Tensor]:
        return {}

    def save(self, folder: Path) -> None:
        raise TypeError("an experiment keeps no weights")

    def where(self, row: int) -> str:
        return f"row {row}"


def learn(
    model: Model,
    draw: Draw,
    *,
    steps: int,
    seed: int,
    pace: Pace | None = None,
    label: str = "",
    batch_size: int = 32,
    lr: float = 1e-3,
    smoothing: float = 0.0,
    measure: Measure | None = None,
    every: int = 0,
    until: float | None = None,
    **settings: Any,
) -> Course:
    """Train `model` in place. `measure` comes after every so many steps and at the end; `until`: stop where the mean
    loss of ten steps is that low; other keywords are those of TrainSettings."""
    course = Course()
    chosen = TrainSettings(
        steps=steps, batch_size=batch_size, lr=lr, seed=seed, eval_every=every, device="cpu", precision="float32",
        **{"schedule": "constant", **settings},
    )  # fmt: skip
    if pace is not None:
        pace.next(label)
    say = (lambda text: pace.note(f"{label}, {text}")) if pace is not None else (lambda text: None)
    try:
        train(Lesson(model, draw, batch_size, smoothing, measure), chosen, callback=Follower(course, say, until))
    except _Enough:
        if measure is not None:
            with torch.no_grad():
                course.measured[len(course.losses)] = measure(model)
    except DivergedError:
        course.diverged = True
    return course
