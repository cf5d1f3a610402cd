"""Images that are decoded on demand by several threads, and cached in memory up to a limit."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from itertools import chain
from typing import Any, Literal

import numpy as np

from anyformer.data.examples import Example, Examples, LazyExamples
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import Error, UnreadableError
from anyformer.tokenizers.cuts import count_rows

TRIED, QUICK = 2, 1e-3  # images that are timed first; seconds per image below which threads do not pay off
ROOM = 2**31  # bytes of the cache of decoded images
NAMED = 10  # unreadable files that are named in warnings

Broken = Literal["raise", "replace", "skip"]  # action for a row whose file cannot be read


@cache
def threads() -> ThreadPoolExecutor:
    """Threads are enough: decoders release the GIL."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, 16), thread_name_prefix="decode")


class DecodedImages(LazyExamples):
    """`function` makes an example of a row; arrays are cached up to `room` bytes. The index of the row is added as
    "row".

    A row whose file cannot be read (UnreadableError) is an error; or it is reported, counted in `broken`, and replaced
    by the next readable row ("replace", for training) or left out ("skip", for evaluation).
    """

    def __init__(
        self, rows: Rows, function: Callable[[Row], Example], *, unreadable: Broken = "raise", room: int = ROOM
    ) -> None:
        super().__init__(rows, function)
        self.unreadable, self.room = unreadable, room
        self.kept: dict[int, Example] = {}
        self.broken: dict[int, str] = {}
        self._lock = threading.Lock()

    def __getitem__(self, i: Any) -> Any:
        found = self.kept.get(int(i))
        made = found if found is not None else self._make(int(i))
        if made is None:
            raise UnreadableError(self.broken[int(i)])
        return made

    def take(self, numbers: Sequence[int] | Any) -> list[Example]:
        """Several examples, decoded in parallel, without skipped ones."""
        indices = [int(i) for i in numbers]
        missing = [i for i in dict.fromkeys(indices) if i not in self.kept]
        made: dict[int, Example | None] = {}
        started = time.perf_counter()
        while missing and (len(made) < TRIED or time.perf_counter() - started < QUICK * len(made)):
            i = missing.pop()
            made[i] = self._make(i)
        contexts = [copy_context() for _ in missing]  # counters of truncated texts
        found = threads().map(lambda context, i: context.run(self._make, i), contexts, missing)
        made.update(zip(missing, found, strict=True))
        return [one for i in indices if (one := made[i] if i in made else self.kept[i]) is not None]

    def _make(self, i: int) -> Example | None:
        if self.unreadable == "raise":
            return self._try(i)
        for place in chain(range(i, len(self)), range(i)) if self.unreadable == "replace" else (i,):
            if place not in self.broken:
                try:
                    return self._try(place)
                except UnreadableError as error:
                    self._tell(place, str(error))
        if len(self.broken) == len(self):
            raise UnreadableError(
                f"None of the files of {self.source.path} can be read. The first error: {self.broken[0]}"
            )
        return None

    def _try(self, i: int) -> Example:
        found = self.kept.get(i)
        if found is not None:
            return found
        try:
            made = {"row": i, **count_rows(lambda rows: self.function(rows[0]), [self.source[i]], [i])}
        except UnreadableError:
            raise  # the message names the file
        except Error as error:
            raise type(error)(f"{self.source.location(i)}: {error}") from None
        self._keep(i, made)
        return made

    def _keep(self, i: int, made: Example) -> None:
        size = sum(value.nbytes for value in made.values() if isinstance(value, np.ndarray))
        with self._lock:
            if size <= self.room and i not in self.kept:
                self.room -= size
                self.kept[i] = made

    def _tell(self, i: int, error: str) -> None:
        with self._lock:
            if i in self.broken:
                return
            self.broken[i] = error
            n = len(self.broken)
        if n <= NAMED:
            more = " Further files are not listed." if n == NAMED else ""
            print(f"Skipped a file ({n} so far): {error}{more}", file=sys.stderr, flush=True)


def take(examples: Examples, numbers: Any) -> list[Example]:
    return examples.take(numbers) if isinstance(examples, DecodedImages) else [examples[int(i)] for i in numbers]
