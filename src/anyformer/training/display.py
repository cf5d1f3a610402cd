"""Progress of training: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from anyformer.model import Model
from anyformer.training.callbacks import Callback, Progress
from anyformer.training.throughput import flops_per_token, peak_flops, peak_memory
from anyformer.training.work import Metrics

LINES, SECONDS = 20, 10.0  # lines in total, and the maximum interval between them


class Display(Callback):
    def __init__(self, model: Model, device: torch.device, metric: str, ranks: int = 1) -> None:
        super().__init__()
        self.device, self.metric = device, metric
        top = peak_flops(device)
        self.use = flops_per_token(model) / (top * ranks) if top is not None else None
        self.live: Any = None
        self.task: Any = None
        self.last, self.timed = time.perf_counter(), False

    def on_train_begin(self, progress: Progress) -> None:
        self.last = time.perf_counter()
        if sys.stdout.isatty():
            self._open(progress)

    def _open(self, progress: Progress) -> None:
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("step {task.completed:,}/{task.total:,}"), BarColumn(bar_width=20), TaskProgressColumn())
        self.live = Bar(*columns, TextColumn("{task.fields[note]}"), transient=True)
        self.task = self.live.add_task("", total=progress.steps, completed=progress.step, note="")
        self.live.start()

    def on_step_end(self, progress: Progress) -> None:
        """The first plain line is printed when the speed is known, or after SECONDS."""
        if self.live is not None:
            self.live.update(self.task, completed=progress.step, note=self.line(progress))
            return
        if progress.metrics is None:
            return
        now = time.perf_counter()
        twentieth = progress.step * LINES // progress.steps > (progress.step - 1) * LINES // progress.steps
        first = not self.timed and progress.seconds_left is not None
        if twentieth or first or now - self.last > SECONDS:
            self.timed = progress.seconds_left is not None
            self._say(f"step {progress.step:,}/{progress.steps:,}  {self.line(progress)}")

    def line(self, progress: Progress) -> str:
        """loss 2.345  valid bleu 31.2  28,000 tokens/s  MFU 41%  12.3 GB  padding 3.1%  data wait 0.2%  4 min left"""
        if progress.metrics is None:
            return ""
        speed, left = progress.tokens_per_second, progress.seconds_left
        parts = [f"loss {progress.loss:.4g}"]
        value = progress.state.metrics.get(self.metric)
        parts += [f"valid {self.metric} {value:.4g}"] if isinstance(value, (int, float)) else []
        if speed is not None:
            parts += [f"{speed:,.0f} {progress.unit}/s"]
            parts += [f"MFU {self.use * speed:.0%}"] if self.use is not None and progress.unit == "tokens" else []
        parts += [f"{peak_memory(self.device) / 1e9:.1f} GB", f"padding {progress.padding:.1%}"]
        parts += [f"data wait {progress.waiting:.1%}"]
        return "  ".join([*parts, *([] if left is None else [f"{duration(left)} left"])])

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        if metrics:
            values = "  ".join(f"{name} {show(value)}" for name, value in metrics.items())
            self._say(f"step {progress.step:,}  evaluated: {values}")

    def on_save(self, progress: Progress, path: Path) -> None:
        if self.live is None:
            self._say(f"step {progress.step:,}  saved to {path}")

    def on_message(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self.last = time.perf_counter()
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)

    def on_train_end(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None


def show(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """75 -> 1 min 15 s"""
    if seconds >= 3600:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"
