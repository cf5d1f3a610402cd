"""Rows into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def even_batches(lengths: Sequence[int], batch_size: int, seed: int) -> Iterator[list[int]]:
    """Row numbers, batch after batch without end: rows of a batch have equal length, so that nothing is padded.

    Every row comes once an epoch; rows and batches are shuffled anew for each.
    """
    order = random.Random(seed)
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    while by_length:
        batches = []
        for rows in by_length.values():
            order.shuffle(rows)
            batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        order.shuffle(batches)
        yield from batches
