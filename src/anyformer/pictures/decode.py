"""Pictures decoded when they are asked for, by several threads at once, and kept where there is room for them."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from anyformer.data.examples import Example, Examples, OnDemand
from anyformer.data.formats import Row
from anyformer.data.read import Rows
from anyformer.errors import Error
from anyformer.pictures.open import PictureError

TRIED, QUICK = 2, 1e-3  # pictures that are tried first; seconds below which threads would only get in each other's way
ROOM = 2**31  # bytes of decoded pictures that are kept
NAMED = 10  # pictures that cannot be opened and are told of one by one


@cache
def threads() -> ThreadPoolExecutor:
    """Decoders let go of Python's lock, so that threads do for them."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, 16), thread_name_prefix="decode")


class Decoded(OnDemand):
    """`function` makes an example of a row; its arrays are kept until `room` bytes are full. With `lenient`, a picture
    that cannot be opened is told of and counted in `broken`, and its place goes to the next that can."""

    def __init__(
        self, rows: Rows, function: Callable[[Row], Example], *, lenient: bool = False, room: int = ROOM
    ) -> None:
        super().__init__(rows, function)
        self.lenient, self.room = lenient, room
        self.kept: dict[int, Example] = {}
        self.broken: dict[int, str] = {}
        self._lock = threading.Lock()

    def __getitem__(self, i: Any) -> Any:
        found = self.kept.get(int(i))
        return found if found is not None else self._make(int(i))

    def take(self, numbers: Sequence[int] | Any) -> list[Example]:
        """Several examples, decoded beside each other."""
        places = [int(i) for i in numbers]
        missing = [i for i in dict.fromkeys(places) if i not in self.kept]
        made: dict[int, Example] = {}
        started = time.perf_counter()
        while missing and (len(made) < TRIED or time.perf_counter() - started < QUICK * len(made)):
            i = missing.pop()
            made[i] = self._make(i)
        made.update(zip(missing, threads().map(self._make, missing), strict=True))
        return [made[i] if i in made else self.kept[i] for i in places]

    def _make(self, i: int) -> Example:
        if not self.lenient:
            return self._try(i)
        for place in chain(range(i, len(self)), range(i)):
            if place not in self.broken:
                try:
                    return self._try(place)
                except PictureError as error:
                    self._tell(place, str(error))
        raise PictureError(f"None of the pictures of {self.source.path} can be opened; the first: {self.broken[0]}")

    def _try(self, i: int) -> Example:
        found = self.kept.get(i)
        if found is not None:
            return found
        try:
            made = self.function(self.source[i])
        except PictureError:
            raise  # which names the file
        except Error as error:
            raise type(error)(f"{self.source.where(i)}: {error}") from None
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
            more = " Others are counted only." if n == NAMED else ""
            print(f"Skipped a picture ({n} so far): {error}{more}", file=sys.stderr, flush=True)


def take(examples: Examples, numbers: Any) -> list[Example]:
    return examples.take(numbers) if isinstance(examples, Decoded) else [examples[int(i)] for i in numbers]
