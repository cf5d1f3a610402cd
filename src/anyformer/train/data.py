"""Rows into batches."""

from __future__ import annotations

import random
from collections.abc import Sequence

from anyformer.train.seeds import mix


def even_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The rows of every batch of an epoch: rows of a batch have equal length, so that nothing is padded.

    Every row comes once an epoch; rows and batches are shuffled anew for each.
    """
    order = random.Random(mix(seed, epoch))
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    batches = []
    for rows in by_length.values():
        order.shuffle(rows)
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    order.shuffle(batches)
    return batches
