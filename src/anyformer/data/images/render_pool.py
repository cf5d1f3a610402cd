"""Worker processes that render text lines, for training that is faster than one renderer. Results depend on the seeds
alone.

The font renderer is not thread-safe. A worker runs this module as a program: it receives the texts, then for each line
of seeds it answers with sizes and texts in one line, followed by the pixels.
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

WORKERS = 4  # maximum
SPARE = 2  # cores left for training

Drawn = tuple[Array, str]


class RenderPool:
    """`draw(seeds)` returns an image and its text for each seed; without spare cores they are rendered in this
    process."""

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
    request = {"texts": lines.texts, "height": lines.height, "widest": lines.widest, "prose": lines.prose}
    _send(worker, json.dumps(request))
    return worker


def _send(worker: subprocess.Popen[bytes], line: str) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(line.encode() + b"\n")
        worker.stdin.flush()
    except OSError:
        raise DataError("A text-rendering process ended unexpectedly; continue the run with --resume.") from None


def _receive(worker: subprocess.Popen[bytes]) -> list[Drawn]:
    assert worker.stdout is not None
    head = worker.stdout.readline()
    if not head:
        raise DataError("A text-rendering process ended unexpectedly; continue the run with --resume.")
    found = []
    for rows, columns, text in json.loads(head):
        pixels = np.frombuffer(worker.stdout.read(rows * columns), dtype=np.uint8).reshape(rows, columns)
        found.append((pixels, text))
    return found


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Render lines until the input ends."""
    lines = TextLineGenerator(**json.loads(requests.readline()))
    for request in requests:
        drawn = [lines.line(seed, 0, 0) for seed in json.loads(request)]
        answers.write(json.dumps([[*pixels.shape, text] for pixels, text in drawn]).encode() + b"\n")
        for pixels, _ in drawn:
            answers.write(pixels.tobytes())
        answers.flush()


if __name__ == "__main__":
    work(sys.stdin.buffer, sys.stdout.buffer)
