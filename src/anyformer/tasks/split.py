"""Splits of rows for training and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyformer.data.rows import Rows
from anyformer.errors import DataError

Ints = NDArray[np.int64]

SHARE, SMALL, MOST_OF_FEW, MOST = 0.05, 50, 0.2, 10_000  # of all rows; rows; of few rows; rows


@dataclass(frozen=True)
class Split:
    """Rows for training and validation. `whole` has all rows if `valid` is a part of the same files; `how` describes
    the split, or why no row was held out."""

    train: Rows
    valid: Rows | None
    how: str
    whole: Rows | None = None

    @property
    def few(self) -> bool:
        """Whether the rows held out are too few to choose a model by."""
        return self.whole is not None and self.valid is not None and len(self.valid) < SMALL


def split_files(train: Rows, valid: Rows) -> Split:
    return Split(train, valid, f"from {valid.path}")


def hold_out(rows: Rows, share: float | None = None, classes: Sequence[str] | None = None, seed: int = 0) -> Split:
    """Hold rows out of a file: the end of a text, else rows drawn at random, stratified if `classes`
    names the class of each row. `share` None: max(5%, min(50 rows, 20%)), at most 10,000 rows, but one of every class
    or more. The only row of a class is trained on."""
    groups = np.zeros(len(rows), dtype=np.int64) if classes is None else np.unique(classes, return_inverse=True)[1]
    sizes = np.bincount(groups)
    n = usual_number(len(rows), sizes) if share is None else round(len(rows) * share)
    if n == len(rows) > 0:
        raise DataError(
            f"{rows.path} has {len(rows)} rows, too few for a validation split; give validation data with --valid."
        )
    if n and rows.kind == "text":
        return Split(rows[:-n], rows[-n:], "the end of the text", rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    held = order[:n] if classes is None else draw(order, groups, portions(sizes, n))
    if not len(held):
        asked = "" if share == 0 else f"{'the default' if share is None else share} of {len(rows):,} rows is none"
        return Split(rows, None, asked, rows)
    how = "drawn at random" if classes is None else "drawn at random, stratified by class"
    kept = np.ones(len(rows), dtype=bool)
    kept[held] = False
    return Split(rows.select(np.flatnonzero(kept)), rows.select(np.sort(held)), how, rows)


def usual_number(rows: int, sizes: Ints) -> int:
    """How many rows are held out of so many, whose classes have these sizes."""
    usual = min(round(max(SHARE * rows, min(SMALL, MOST_OF_FEW * rows))), MOST)
    return max(usual, int((sizes > 1).sum())) if len(sizes) > 1 else usual


def portions(sizes: Ints, n: int) -> Ints:
    """`n` rows shared among classes by their sizes: one of each class or more if `n` allows, but never all of one."""
    least = (sizes > 1).astype(np.int64) if n >= (sizes > 1).sum() else np.zeros_like(sizes)
    most = np.maximum(sizes - 1, 0)
    wanted = n * sizes / sizes.sum()
    counts = np.clip(np.floor(wanted).astype(np.int64), least, most)
    while (missing := min(n, int(most.sum())) - int(counts.sum())) != 0:
        step = 1 if missing > 0 else -1
        free = np.flatnonzero(counts < most if missing > 0 else counts > least)
        nearest = free[np.argsort(step * (counts - wanted)[free], kind="stable")]
        counts[nearest[: abs(missing)]] += step
    return counts


def draw(order: Ints, groups: Ints, counts: Ints) -> Ints:
    """The first `counts` rows of each group, in that order."""
    grouped = order[np.argsort(groups[order], kind="stable")]
    starts = np.repeat(np.cumsum(np.bincount(groups)) - np.bincount(groups), np.bincount(groups))
    place = np.arange(len(order)) - starts  # of a row in its group
    return grouped[place < counts[groups[grouped]]]


def take_share(rows: Rows, share: float, seed: int = 0) -> Rows:
    """The share of the rows that is learned from: of a text its beginning, of a table rows drawn at random."""
    n = max(round(len(rows) * share), 1)
    if n == len(rows):
        return rows
    if rows.kind == "text":
        return rows[:n]
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:n]))
