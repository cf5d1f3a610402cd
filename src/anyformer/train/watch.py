"""What a run says of itself, and to whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anyformer.train.readout import Figures
from anyformer.train.state import State
from anyformer.train.work import Metrics


@dataclass
class Progress:
    """Where a run stands, for whoever shows it. Speeds are of this start, breaks not counted."""

    steps: int
    state: State
    figures: Figures | None = None  # of the last step that was read
    started: float = field(default_factory=time.perf_counter)
    first_step: int = 0
    first_tokens: int = 0
    waited: float = 0.0  # seconds that the trainer stood still for want of data
    unit: str = "tokens"  # what `tokens` counts: images, where those are what a model reads

    def begin(self) -> None:
        self.started, self.first_step, self.first_tokens = time.perf_counter(), self.state.step, self.state.tokens

    def saw(self, figures: Figures) -> None:
        self.figures = figures

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
    def tokens_per_second(self) -> float:
        return (self.state.tokens - self.first_tokens) / max(self.seconds, 1e-9)

    @property
    def padding(self) -> float:
        """The share of slots that held nothing real."""
        return 1 - self.state.tokens / max(self.state.slots, 1)

    @property
    def waiting(self) -> float:
        """The share of the time that was spent waiting for data."""
        return self.waited / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        return self.seconds * (self.steps - self.step) / max(self.step - self.first_step, 1)


class Watcher:
    """Hears of everything that happens; this one only passes steps on. Display and reports are such."""

    def __init__(self, on_step: Callable[[Progress], None] | None = None) -> None:
        self.on_step = on_step

    def start(self, progress: Progress) -> None:
        """Before the first step, or where a run continues."""

    def step(self, progress: Progress) -> None:
        if self.on_step is not None:
            self.on_step(progress)

    def log(self, figures: Figures, progress: Progress) -> None:
        """Every `log_every` steps."""

    def evaluated(self, progress: Progress, metrics: Metrics) -> None: ...

    def saved(self, progress: Progress, path: Path) -> None: ...

    def note(self, text: str) -> None:
        """A sentence for the user."""

    def stop(self) -> None:
        """The run is over, one way or another."""


class Watchers(Watcher):
    def __init__(self, watchers: Sequence[Watcher]) -> None:
        super().__init__()
        self.watchers = watchers

    def start(self, progress: Progress) -> None:
        for watcher in self.watchers:
            watcher.start(progress)

    def step(self, progress: Progress) -> None:
        for watcher in self.watchers:
            watcher.step(progress)

    def log(self, figures: Figures, progress: Progress) -> None:
        for watcher in self.watchers:
            watcher.log(figures, progress)

    def evaluated(self, progress: Progress, metrics: Metrics) -> None:
        for watcher in self.watchers:
            watcher.evaluated(progress, metrics)

    def saved(self, progress: Progress, path: Path) -> None:
        for watcher in self.watchers:
            watcher.saved(progress, path)

    def note(self, text: str) -> None:
        for watcher in self.watchers:
            watcher.note(text)

    def stop(self) -> None:
        for watcher in self.watchers:
            watcher.stop()
