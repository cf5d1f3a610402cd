"""The progress of long work: a live bar in a terminal, plain lines elsewhere (a log, a pipe)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Show = Callable[..., None]  # show(done, total, note="")

LEAST, MOST = 1.0, 10.0  # seconds between two plain lines


@contextmanager
def progress_bar(label: str, stderr: bool = False) -> Iterator[Show]:
    """Yield show(done, total, note=""), which draws on standard output, or on standard error."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        yield Lines(label, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description:<16}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(file=stream), transient=stderr) as bar:
        task = bar.add_task(label, total=None, note="")
        yield lambda done, total, note="": bar.update(task, completed=done, total=total, note=note)


class Lines:
    """Prints a line for every tenth of the work, at most one a second and at least one in ten seconds."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self.label, self.stream = label, stream
        self.tenth, self.last, self.begun = 0, time.perf_counter(), False

    def __call__(self, done: int, total: int, note: str = "") -> None:
        tenth, waited = done * 10 // max(total, 1), time.perf_counter() - self.last
        ends = self.begun and tenth >= 10 > self.tenth
        if not (ends or waited >= MOST or (waited >= LEAST and tenth > self.tenth)):
            return
        self.tenth, self.last, self.begun = tenth, time.perf_counter(), True
        share = done / max(total, 1)
        print(f"{self.label:<16} {share:4.0%}  {note}".rstrip(), file=self.stream, flush=True)
