"""Batches of rows of similar length, as a pure function of the seed and the epoch."""

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
    """Batches of `rows` rows; or of up to `tokens` tokens, padding included, if that is set."""

    rows: int = 32
    tokens: int | None = None
    shuffle: bool = True
    drop_last: bool = False  # drop an incomplete last batch, unless it is the only one
    min_rows: int = 1  # a smaller last batch is merged with the one before

    def check(self) -> None:
        self.require(self.rows > 0, f"rows is {self.rows}; it must be 1 or more.")
        self.require(self.min_rows > 0, f"min_rows is {self.min_rows}; it must be 1 or more.")
        self.require(self.tokens is None or self.tokens > 0, f"tokens is {self.tokens}; it must be 1 or more.")


class LengthGroupedSampler:
    """`lengths` [n], or [n, sides] for examples with several sequences that are padded separately.

    Rows are sorted by length, cut into batches, and the batches are shuffled; rows of equal length are permuted in each
    epoch. Each of `ranks` processes gets its part of every batch, so the batches do not depend on the number of
    processes.
    """

    def __init__(self, lengths: ArrayLike, settings: BatchConfig, seed: int = 0, rank: int = 0, ranks: int = 1) -> None:
        sizes = np.asarray(lengths, dtype=np.int64)
        self.lengths = sizes[:, None] if sizes.ndim == 1 else sizes
        self.settings, self.seed, self.rank, self.ranks = settings, seed, rank, ranks
        if not len(self.lengths):
            raise DataError("There are no rows to make batches of.")
        if len(self.lengths) < ranks:
            raise DataError(f"{len(self.lengths)} rows cannot be divided among {ranks} processes.")
        if settings.tokens is None and settings.rows < ranks:
            raise ConfigError(
                f"train.batch_size is {settings.rows}; it must be at least the number of processes, {ranks}."
            )

    def local_batches(self, n: int) -> list[Index]:
        """The rows of this process in every batch of epoch n, in order."""
        return [batch[self.rank :: self.ranks] for batch in self.global_batches(n)]

    def global_batches(self, n: int) -> list[Index]:
        """The rows of every batch of epoch n, of all processes together."""
        rng = np.random.default_rng((self.seed, n))
        order = length_sorted_order(self.lengths, rng if self.settings.shuffle else None, self._rows_a_batch)
        batches = [order[start:end] for start, end in self._cuts(order)]
        if self.settings.shuffle:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return batches

    @property
    def _rows_a_batch(self) -> float:
        if self.settings.tokens is None:
            return self.settings.rows
        return max(self.settings.tokens / max(float(self.lengths.sum(axis=1).mean()), 1.0), 1.0)

    def _cuts(self, order: Index) -> list[tuple[int, int]]:
        """Starts and ends of batches; a last one too small to divide is merged with the one before."""
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
        """Batch sizes: as many rows as fit, but at least one for each process and at least `min_rows`."""
        starts, start, least = [0], 0, max(self.ranks, self.settings.min_rows)
        while True:
            # An upper bound: the number that would fit if every row were as short as the first.
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
        """The fraction of tokens in the batches of an epoch that is padding."""
        slots = 0
        for batch in self.global_batches(0):
            for mine in (batch[rank :: self.ranks] for rank in range(self.ranks)):
                slots += len(mine) * int(self.lengths[mine].max(axis=0).sum())
        return 1.0 - int(self.lengths.sum()) / max(slots, 1)

    def __len__(self) -> int:
        return len(self.global_batches(0))


def length_sorted_order(lengths: Index, rng: np.random.Generator | None, rows: float) -> Index:
    """An order in which neighbors have similar lengths on every side.

    One side: sorted. Two: cut by the first side into strips with equally many tokens, each sorted by the second side in
    alternating direction. The number of strips makes the spread within a batch about equal on both sides. Rows of equal
    length are permuted.
    """
    n = len(lengths)
    start = np.arange(n) if rng is None else rng.permutation(n)
    if lengths.shape[1] == 1:
        return start[np.argsort(lengths[start, 0], kind="stable")]
    first, second = lengths[start, 0], lengths[start, 1:].sum(axis=1)
    spread = float(first.std()) / max(float(second.std()), 1e-9)
    strips = min(max(round((2 * n / rows * spread) ** 0.5), 1), n)  # 2: least padding on the data sets tested
    ordered = np.sort(first)
    before = np.concatenate([[0], np.cumsum(ordered)])  # tokens of all shorter rows; equal lengths share a strip
    strip = before[np.searchsorted(ordered, first)] * strips // max(int(before[-1]), 1)
    turned = np.where(strip % 2 == 0, second, -second)
    return start[np.lexsort((turned, strip))]
