"""Counting truncated rows and texts, so that a command can report them.

with count_cuts() as cuts:
    task.evaluate(rows)
print(cuts)                 # 3 texts were cut to 128 tokens
print(cuts.by_row(rows))    # 2 rows were cut to 128 tokens
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")
PAIRED = 6  # texts of a row of which any two may be tokenized as a pair


@dataclass
class Cuts:
    """Truncated texts by the length they were cut to, and their rows if rows are prepared. A text that is tokenized
    twice counts once."""

    found: dict[int, set[int]] = field(default_factory=dict)  # length in tokens -> hashes of the texts
    rows: dict[int, set[int]] = field(default_factory=dict)  # length in tokens -> numbers of the rows

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return _spell("text", {tokens: len(texts) for tokens, texts in self.found.items()})

    def by_row(self, rows: Iterable[Mapping[str, Any]]) -> str:
        """How many rows were cut, of rows that were prepared or whose values are the texts; else how many texts."""
        if self.rows:
            return _spell("row", {tokens: len(cut) for tokens, cut in self.rows.items()})
        return self.by_texts(hash_texts(row) for row in rows)

    def by_texts(self, rows: Iterable[set[int]]) -> str:
        """How many rows were cut, by the hashes of their texts; else, if a cut text is in no row, how many texts."""
        counts, left = dict.fromkeys(self.found, 0), {tokens: set(cut) for tokens, cut in self.found.items()}
        for row in rows:
            for tokens, cut in self.found.items():
                counts[tokens] += not cut.isdisjoint(row)
                left[tokens] -= row
        return str(self) if any(left.values()) else _spell("row", counts)


def hash_texts(row: Any) -> set[int]:
    """Hashes of what may be tokenized of a text, a pair or a row: each text, also in lower case, and any two joined."""
    values = row.values() if isinstance(row, Mapping) else row if isinstance(row, (list, tuple)) else [row]
    whole = [value for value in values if isinstance(value, str)]
    texts = list(dict.fromkeys([*whole, *(part for text in whole for part in text.split("\t"))]))
    pairs = [one + other for one, other in permutations(texts[:PAIRED], 2)]
    return {hash(text) for text in (*texts, *(text.lower() for text in texts), *pairs)}


def _spell(unit: str, counts: Mapping[int, int]) -> str:
    found = sorted(counts.items(), reverse=True)
    return ", ".join(f"{n:,} {unit}{'s were' if n > 1 else ' was'} cut to {k:,} tokens" for k, n in found)


_COUNTED: ContextVar[Cuts | None] = ContextVar("cuts", default=None)


@contextmanager
def count_cuts() -> Iterator[Cuts]:
    """Count the texts that are truncated inside the block."""
    token = _COUNTED.set(cuts := Cuts())
    try:
        yield cuts
    finally:
        _COUNTED.reset(token)


def count_rows(function: Callable[[list[T]], U], rows: list[T], numbers: Iterable[int]) -> U:
    """Call the function on rows with these numbers. If a text is truncated, call it again row by row to count rows."""
    if (cuts := _COUNTED.get()) is None:
        return function(rows)
    with count_cuts() as new:
        made = function(rows)
    for tokens, texts in new.found.items():
        cuts.found.setdefault(tokens, set()).update(texts)
    for number, row in zip(numbers, rows, strict=True) if new else ():
        one = new
        if len(rows) > 1:
            with count_cuts() as one:
                function([row])
        for tokens in one.found:
            cuts.rows.setdefault(tokens, set()).add(number)
    return made


def are_counted() -> bool:
    """Whether truncated texts are being counted."""
    return _COUNTED.get() is not None


def note_cut(text: str, tokens: int) -> None:
    """Record that a text was truncated to this many tokens."""
    if (cuts := _COUNTED.get()) is not None:
        cuts.found.setdefault(tokens, set()).add(hash(text))


def shorten(ids: list[int], tokens: int, text: str) -> list[int]:
    """Truncate ids to `tokens`, and record it if any were dropped."""
    if len(ids) > tokens:
        note_cut(text, tokens)
    return ids[:tokens]
