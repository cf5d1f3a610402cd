"""Truncation is counted, so that a command can say how many texts were cut, and to what length.

with count_cuts() as cuts:
    task.evaluate(rows)
print(cuts)             # 3 texts were cut to 128 tokens
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Cuts:
    """Texts that were cut, by the length that is left of them. A text that is tokenized twice counts once."""

    found: dict[int, set[int]] = field(default_factory=dict)  # tokens -> the hashes of texts

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        counts = {tokens: len(texts) for tokens, texts in sorted(self.found.items(), reverse=True)}
        return ", ".join(f"{n:,} text{'s were' if n > 1 else ' was'} cut to {k:,} tokens" for k, n in counts.items())


_COUNTED: ContextVar[Cuts | None] = ContextVar("cuts", default=None)


@contextmanager
def count_cuts() -> Iterator[Cuts]:
    """Count what is cut in the block."""
    token = _COUNTED.set(cuts := Cuts())
    try:
        yield cuts
    finally:
        _COUNTED.reset(token)


def are_counted() -> bool:
    """Whether somebody counts what is cut, and will say so."""
    return _COUNTED.get() is not None


def note_cut(text: str, tokens: int) -> None:
    """Somebody may want to know that a text was cut to so many tokens."""
    if (cuts := _COUNTED.get()) is not None:
        cuts.found.setdefault(tokens, set()).add(hash(text))


def shorten(ids: list[int], tokens: int, text: str) -> list[int]:
    """The first tokens of a text, and a note if there are more."""
    if len(ids) > tokens:
        note_cut(text, tokens)
    return ids[:tokens]
