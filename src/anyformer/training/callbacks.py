"""What a run says of itself, and to whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from anyformer.errors import InputError
from anyformer.model import Model
from anyformer.training.state import TrainState
from anyformer.training.step_metrics import StepMetrics
from anyformer.training.work import Metrics


class SpeedMark(NamedTuple):
    """When the figures of a step were there, and how many tokens had been read by then."""

    time: float
    step: int
    tokens: int


@dataclass
class Progress:
    """Where a run stands, for whoever shows it. Speeds are of this start, breaks not counted.

    The first step of a start sets everything up (compiles, chooses kernels), and on a GPU its figures are there a step
    later: until those of a second one came, nothing is known of the speed.
    """

    steps: int
    state: TrainState
    max_minutes: float = 0.0  # that the run may take; 0: no limit
    metrics: StepMetrics | None = None  # of the last step that was read
    started: float = field(default_factory=time.perf_counter)
    mark: SpeedMark | None = None  # the first figures of this start
    waited: float = 0.0  # seconds that the trainer stood still for want of data
    unit: str = "tokens"  # what `tokens` counts: images, where those are what a model reads
    model: Model | None = None  # that is trained
    stop: bool = False  # a callback sets it to end the run after this step, with an evaluation and a saved model

    def begin(self) -> None:
        self.started, self.metrics, self.mark = time.perf_counter(), None, None

    def update(self, metrics: StepMetrics) -> None:
        self.metrics = metrics
        if self.mark is None:
            self.mark = SpeedMark(time.perf_counter(), metrics.step, self.state.tokens)

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def loss(self) -> float:
        return self.state.loss

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def tokens_per_second(self) -> float | None:
        """None: not known yet."""
        since = self._since()
        return None if since is None else since.tokens / max(since.time, 1e-9)

    @property
    def padding(self) -> float:
        """The share of slots that held nothing real."""
        return 1 - self.state.tokens / max(self.state.slots, 1)

    @property
    def waiting(self) -> float:
        """The share of the time that was spent waiting for data."""
        return self.waited / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """None: not known yet."""
        since = self._since()
        if since is None:
            return None
        left = since.time / since.step * (self.steps - self.step)
        return min(left, max(60 * self.max_minutes - self.state.seconds, 0.0)) if self.max_minutes else left

    def _since(self) -> SpeedMark | None:
        """The time, the steps and the tokens after the first figures; None: there were no others."""
        if self.mark is None or self.metrics is None or self.metrics.step == self.mark.step:
            return None
        now = SpeedMark(time.perf_counter(), self.metrics.step, self.state.tokens)
        return SpeedMark(now.time - self.mark.time, now.step - self.mark.step, now.tokens - self.mark.tokens)


class Callback:
    """Hooks into training, for `af.train(…, callbacks=[…])`; subclasses define those that they need.

    class StopEarly(af.Callback):
        def on_evaluate(self, progress, metrics):
            progress.stop = metrics["accuracy"] > 0.9
    """

    def __init__(self, on_step: Callable[[Progress], None] | None = None) -> None:
        self.on_step = on_step

    @staticmethod
    def of(given: Callback | Callable[[Progress], None]) -> Callback:
        """A callback as it is; a function is called after every step."""
        if not isinstance(given, Callback) and (isinstance(given, type) or not callable(given)):
            what = given.__name__ if isinstance(given, type) else type(given).__name__
            raise InputError(f"callbacks has {what}; it takes objects of af.Callback, or functions of the progress.")
        return given if isinstance(given, Callback) else Callback(given)

    def on_train_begin(self, progress: Progress) -> None:
        """Before the first step, or where a run continues."""

    def on_step_end(self, progress: Progress) -> None:
        """After every step."""
        if self.on_step is not None:
            self.on_step(progress)

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        """Every `log_every` steps."""

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        """After every evaluation on the validation rows."""

    def on_save(self, progress: Progress, path: Path) -> None:
        """After every checkpoint; `path` is its folder."""

    def on_message(self, text: str) -> None:
        """A sentence for the user."""

    def on_train_end(self) -> None:
        """The run is over, one way or another."""


class CallbackList(Callback):
    def __init__(self, callbacks: Sequence[Callback]) -> None:
        super().__init__()
        self.watchers = callbacks

    def on_train_begin(self, progress: Progress) -> None:
        for watcher in self.watchers:
            watcher.on_train_begin(progress)

    def on_step_end(self, progress: Progress) -> None:
        for watcher in self.watchers:
            watcher.on_step_end(progress)

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        for watcher in self.watchers:
            watcher.on_log(metrics, progress)

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        for watcher in self.watchers:
            watcher.on_evaluate(progress, metrics)

    def on_save(self, progress: Progress, path: Path) -> None:
        for watcher in self.watchers:
            watcher.on_save(progress, path)

    def on_message(self, text: str) -> None:
        for watcher in self.watchers:
            watcher.on_message(text)

    def on_train_end(self) -> None:
        for watcher in self.watchers:
            watcher.on_train_end()
