"""Lines drawn by several processes at once, for a trainer that reads faster than one can draw. What they draw depends
on the seeds alone, whoever draws it.

The library that draws letters is not safe in threads. A worker is this module as a program: it is told the texts, and
then for each request, a line of seeds, answers with sizes and texts in one line, and the pixels after it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

import numpy as np

from anyformer.data.images.image_file import Array
from anyformer.data.images.synthetic_text import TextLineGenerator
from anyformer.errors import DataError

WORKERS = 4  # at most
SPARE = 2  # cores that are left to the trainer

Drawn = tuple[Array, str]


class RenderPool:
    """`draw(seeds)` gives a line and its text for each; with no core to spare they are drawn here."""

    def __init__(self, lines: TextLineGenerator, workers: int | None = None) -> None:
        self.lines = lines
        n = max(min((os.cpu_count() or 1) - SPARE, WORKERS), 0) if workers is None else workers
        self._lock = threading.Lock()
        self._workers = [_start(lines) for _ in range(n)]
        if self._workers:
            atexit.register(self.close)

    def draw(self, seeds: Sequence[int]) -> list[Drawn]:
        with self._lock:
            if not self._workers:
                return [self.lines.line(seed, 0, 0) for seed in seeds]
            shares = [list(seeds[i :: len(self._workers)]) for i in range(len(self._workers))]
            busy = [(worker, share) for worker, share in zip(self._workers, shares, strict=True) if share]
            for worker, share in busy:
                _send(worker, json.dumps(share))
            answers = [_receive(worker) for worker, _ in busy]
        found: list[Drawn] = []
        for place in range(len(seeds)):
            found.append(answers[place % len(self._workers)][place // len(self._workers)])
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._workers = []


def _start(lines: TextLineGenerator) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(part for part in sys.path if part)
    worker = subprocess.Popen(
        [sys.executable, "-m", "anyformer.data.images.render_pool"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    told = {"texts": lines.texts, "height": lines.height, "widest": lines.widest, "prose": lines.prose}
    _send(worker, json.dumps(told))
    return worker


def _send(worker: subprocess.Popen[bytes], line: str) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(line.encode() + b"\n")
        worker.stdin.flush()
    except OSError:
        raise DataError("A process that draws lines ended by itself; start the training again with --resume.") from None


def _receive(worker: subprocess.Popen[bytes]) -> list[Drawn]:
    assert worker.stdout is not None
    head = worker.stdout.readline()
    if not head:
        raise DataError("A process that draws lines ended by itself; start the training again with --resume.")
    found = []
    for rows, columns, text in json.loads(head):
        pixels = np.frombuffer(worker.stdout.read(rows * columns), dtype=np.uint8).reshape(rows, columns)
        found.append((pixels, text))
    return found


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Draw until nothing more is asked for."""
    lines = TextLineGenerator(**json.loads(requests.readline()))
    for request in requests:
        drawn = [lines.line(seed, 0, 0) for seed in json.loads(request)]
        answers.write(json.dumps([[*pixels.shape, text] for pixels, text in drawn]).encode() + b"\n")
        for pixels, _ in drawn:
            answers.write(pixels.tobytes())
        answers.flush()


if __name__ == "__main__":
    work(sys.stdin.buffer, sys.stdout.buffer)
