"""Where a run stands. With the tensors beside it in a checkpoint, it is all that a run needs to go on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from anyformer.training.loader import DataPosition
from anyformer.upgrades import upgrade

SMOOTH = 0.95  # how slowly the loss on display follows the loss of the last batch


@dataclass
class TrainState:
    step: int = 0
    epoch: int = 0  # of the next batch
    batch: int = 0
    first_loss: float | None = None
    loss: float = math.nan  # smoothed
    best: float | None = None  # the metric of the best evaluation, its loss and its step
    best_loss: float | None = None
    best_step: int = 0
    evals_without_improvement: int = 0  # evaluations in a row whose metric was no better
    evaluated: int = 0  # the step of the last evaluation
    metrics: dict[str, Any] = field(default_factory=dict)  # what it found
    tokens: int = 0
    slots: int = 0
    seconds: float = 0.0  # of work, breaks not counted
    since: float = (
        0.0  # seconds of work, and the place in the schedule then: where its line of time begins (time_budget.py)
    )
    reached: float = 0.0
    energy: float = 0.0  # kWh
    scaler: dict[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> DataPosition:
        return DataPosition(self.epoch, self.batch)

    def advance(self, place: DataPosition) -> None:
        self.step += 1
        self.epoch, self.batch = place

    def update(self, loss: float, tokens: int, slots: int) -> None:
        """A step's figures, which a GPU may give a step later."""
        self.tokens += tokens
        self.slots += slots
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.loss = loss if math.isnan(self.loss) else SMOOTH * self.loss + (1 - SMOOTH) * loss

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        saved = upgrade(cls, data)
        return cls(**{f.name: saved[f.name] for f in fields(cls) if f.name in saved})
