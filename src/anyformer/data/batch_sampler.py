"""Batches of rows of like length: which rows stand together is a pure function of the seed and the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from anyformer.config import Settings
from anyformer.errors import ConfigError, DataError

Index = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Settings):
    """`rows` a batch; or as many as fit into `tokens`, padding counted, where that is given."""

    rows: int = 32
    tokens: int | None = None
    shuffle: bool = True
    drop_last: bool = False  # leave out what does not fill a batch, where there is more than one
    min_rows: int = 1  # of a batch; a last one that is smaller joins the one before

    def check(self) -> None:
        self.require(self.rows > 0, f"rows is {self.rows}; it must be 1 or more.")
        self.require(self.min_rows > 0, f"min_rows is {self.min_rows}; it must be 1 or more.")
        self.require(self.tokens is None or self.tokens > 0, f"tokens is {self.tokens}; it must be 1 or more.")


class LengthGroupedSampler:
    """`lengths` [n], or [n, sides] where an example has several sequences that are padded each by itself.

    Rows are sorted by length, cut into batches, and the batches shuffled; rows of one length change places from epoch
    to epoch. Of every batch each of `ranks` processes gets its share, so that the batches are the same for any number.
    """

    def __init__(self, lengths: ArrayLike, settings: BatchConfig, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        sizes = np.asarray(lengths, dtype=np.int64)
        self.lengths = sizes[:, None] if sizes.ndim == 1 else sizes
        self.settings, self.seed, self.rank, self.ranks = settings, seed, rank, ranks
        if not len(self.lengths):
            raise DataError("There are no rows to make batches of.")
        if len(self.lengths) < ranks:
            raise DataError(f"{len(self.lengths)} rows cannot be shared among {ranks} processes.")
        if settings.tokens is None and settings.rows < ranks:
            raise ConfigError(f"A batch of {settings.rows} rows cannot be shared among {ranks} processes.")

    def local_batches(self, n: int) -> list[Index]:
        """This process's rows of every batch of epoch n, in order."""
        return [batch[self.rank :: self.ranks] for batch in self.global_batches(n)]

    def global_batches(self, n: int) -> list[Index]:
        """The rows of every batch of epoch n, those of all processes together."""
        chance = np.random.default_rng((self.seed, n))
        order = length_sorted_order(self.lengths, chance if self.settings.shuffle else None, self._rows_a_batch)
        batches = [order[start:end] for start, end in self._cuts(order)]
        if self.settings.shuffle:
            batches = [batches[i] for i in chance.permutation(len(batches))]
        return batches

    @property
    def _rows_a_batch(self) -> float:
        if self.settings.tokens is None:
            return self.settings.rows
        return max(self.settings.tokens / max(float(self.lengths.sum(axis=1).mean()), 1.0), 1.0)

    def _cuts(self, order: Index) -> list[tuple[int, int]]:
        """Where batches begin and end; a last one too small to share joins the one before."""
        n = len(order)
        if self.settings.tokens is None:
            starts = list(range(0, n, self.settings.rows))
        else:
            starts = self._fill(self.lengths[order], self.settings.tokens)
        if len(starts) > 1 and n - starts[-1] < self.ranks:
            starts.pop()
        elif (
            self.settings.drop_last
            and self.settings.tokens is None
            and len(starts) > 1
            and n - starts[-1] < self.settings.rows
        ):
            n = starts.pop()
        elif len(starts) > 1 and n - starts[-1] < self.settings.min_rows:
            starts.pop()
        return list(zip(starts, [*starts[1:], n], strict=True))

    def _fill(self, sizes: Index, tokens: int) -> list[int]:
        """As many rows as fit, and never fewer than there are processes or than `min_rows`."""
        starts, start, least = [0], 0, max(self.ranks, self.settings.min_rows)
        while True:
            # Where every row were as short as the first, this many would fit; they are no fewer than what does.
            reach = max(tokens // max(int(sizes[start].sum()), 1), least) + 1
            room = np.maximum.accumulate(sizes[start : start + reach + least], axis=0).sum(axis=1)
            over = np.flatnonzero(room * np.arange(1, len(room) + 1) > tokens)
            take = max(int(over[0]) if len(over) else len(room), least)
            if start + take >= len(sizes):
                return starts
            start += take
            starts.append(start)

    @cached_property
    def padding(self) -> float:
        """The share of all places in the batches of an epoch where nothing stands."""
        places = 0
        for batch in self.global_batches(0):
            for mine in (batch[rank :: self.ranks] for rank in range(self.ranks)):
                places += len(mine) * int(self.lengths[mine].max(axis=0).sum())
        return 1.0 - int(self.lengths.sum()) / max(places, 1)

    def __len__(self) -> int:
        return len(self.global_batches(0))


def length_sorted_order(lengths: Index, rng: np.random.Generator | None, rows: float) -> Index:
    """An order in which neighbors are of like length on every side.

    One side: sorted. Two: cut by the first into strips of as many tokens each, and each strip sorted by the second, up
    and down in turn; there are so many strips that the spread within a batch is about equal on both sides. Equal
    lengths stand in a new order each time.
    """
    n = len(lengths)
    start = np.arange(n) if rng is None else rng.permutation(n)
    if lengths.shape[1] == 1:
        return start[np.argsort(lengths[start, 0], kind="stable")]
    first, second = lengths[start, 0], lengths[start, 1:].sum(axis=1)
    spread = float(first.std()) / max(float(second.std()), 1e-9)
    strips = min(max(round((2 * n / rows * spread) ** 0.5), 1), n)  # 2: least padding on the data sets at hand
    ordered = np.sort(first)
    before = np.concatenate([[0], np.cumsum(ordered)])  # tokens in all that is shorter; equal lengths share a strip
    strip = before[np.searchsorted(ordered, first)] * strips // max(int(before[-1]), 1)
    turned = np.where(strip % 2 == 0, second, -second)
    return start[np.lexsort((turned, strip))]
