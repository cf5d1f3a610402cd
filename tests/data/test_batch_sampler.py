"""Batches: every row once an epoch, alike for any number of processes, and hardly any padding on real data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig, LengthGroupedSampler
from anyformer.data.rows import read

LENGTHS = np.random.default_rng(0).integers(1, 60, 1000)
PAIRS = np.stack([LENGTHS, np.maximum(LENGTHS + np.random.default_rng(1).integers(-4, 5, 1000), 1)], axis=1)


def rows_of(batches: list[np.ndarray]) -> list[int]:
    return sorted(int(row) for batch in batches for row in batch)


@pytest.mark.parametrize("lengths", [LENGTHS, PAIRS], ids=["one", "two"])
@pytest.mark.parametrize("settings", [BatchConfig(rows=16), BatchConfig(tokens=900)], ids=["rows", "tokens"])
def test_every_row_once_an_epoch(lengths: np.ndarray, settings: BatchConfig) -> None:
    batches = LengthGroupedSampler(lengths, settings, seed=3)
    for epoch in range(3):
        assert rows_of(batches.local_batches(epoch)) == list(range(1000))
    again = LengthGroupedSampler(lengths, settings, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(batches.local_batches(2), again.local_batches(2), strict=True))
    orders = [np.concatenate(batches.local_batches(0)), np.concatenate(batches.local_batches(1))]
    assert not np.array_equal(*orders)
    assert not np.array_equal(
        orders[0], np.concatenate(LengthGroupedSampler(lengths, settings, seed=4).local_batches(0))
    )
    sides = lengths.reshape(1000, -1)
    for batch in batches.local_batches(0):
        if settings.tokens is None:
            assert len(batch) in (16, 1000 % 16)
        else:
            assert len(batch) == 1 or len(batch) * int(sides[batch].max(axis=0).sum()) <= 900


def test_the_padding_that_is_said_is_the_padding_there_is() -> None:
    batches = LengthGroupedSampler([1, 2, 3, 9], BatchConfig(rows=2))  # {1, 2} and {3, 9}: 1 and 6 places of 4 + 18
    assert batches.padding == pytest.approx(7 / 22)
    assert LengthGroupedSampler([5] * 10, BatchConfig(rows=4)).padding == 0


@pytest.mark.parametrize("settings", [BatchConfig(rows=16), BatchConfig(tokens=300)], ids=["rows", "tokens"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_share_every_batch(settings: BatchConfig, ranks: int) -> None:
    """Without overlap or loss; nobody goes empty, and one process would see the same batches."""
    lengths = LENGTHS[:97]  # 97 rows leave one over
    shares = [LengthGroupedSampler(lengths, settings, 5, rank, ranks).local_batches(4) for rank in range(ranks)]
    alone = LengthGroupedSampler(lengths, settings, 5, 0, ranks).global_batches(4)
    assert len({len(share) for share in shares}) == 1
    for number, batch in enumerate(alone):
        mine = [share[number] for share in shares]
        assert all(len(rows) for rows in mine)
        assert rows_of(mine) == sorted(batch.tolist())
    assert rows_of(alone) == list(range(97))
    if ranks <= 97 % 16 and settings.tokens is None:
        assert all(
            np.array_equal(a, b)
            for a, b in zip(alone, LengthGroupedSampler(lengths, settings, 5).global_batches(4), strict=True)
        )


def test_unshuffled_batches_run_from_short_to_long() -> None:
    batches = LengthGroupedSampler(LENGTHS, BatchConfig(rows=10, shuffle=False))
    longest = [int(LENGTHS[batch].max()) for batch in batches.local_batches(0)]
    assert longest == sorted(longest)
    assert all(np.array_equal(a, b) for a, b in zip(batches.local_batches(0), batches.local_batches(1), strict=True))


def test_mistakes() -> None:
    with pytest.raises(af.DataError, match="no rows"):
        LengthGroupedSampler([], BatchConfig())
    with pytest.raises(af.DataError, match=r"^3 rows .* 4 processes"):
        LengthGroupedSampler([1, 2, 3], BatchConfig(), ranks=4)
    with pytest.raises(af.ConfigError, match="rows is 0"):
        BatchConfig(rows=0)


DATA = Path(os.environ.get("ANYFORMER_DATA", "/nowhere"))


@pytest.mark.parametrize(
    ("files", "columns", "settings"),
    [
        (("multi30k/train.en.gz", "multi30k/train.de.gz"), ("1", "2"), BatchConfig(tokens=4096)),
        (("sst2/train.tsv.gz",), ("sentence",), BatchConfig(rows=32)),
        (("sst2/dev.tsv",), ("sentence",), BatchConfig(rows=32)),
        (("conll2003/eng.train.gz",), ("tokens",), BatchConfig(rows=32)),
        (("samsum/train.jsonl.gz",), ("dialogue", "summary"), BatchConfig(tokens=4096)),
        (("tatoeba_en_de/train.tsv.gz",), ("1", "2"), BatchConfig(tokens=4096)),
    ],
    ids=["multi30k", "sst2", "sst2-dev", "conll2003", "samsum", "tatoeba"],
)
def test_padding_on_real_data(files: tuple[str, ...], columns: tuple[str, ...], settings: BatchConfig) -> None:
    """Under 5% of all tokens, here words between spaces and one more."""
    paths = [DATA / file for file in files]
    if not all(path.exists() for path in paths):
        pytest.skip(f"{files[0]} is not under ANYFORMER_DATA")
    default = "conll" if "conll" in files[0] else "text"
    rows = read(paths, default=default, sides=columns if len(paths) > 1 else ())

    def size(value: str | list[str]) -> int:
        return 1 + len(value.split() if isinstance(value, str) else value)

    lengths = np.array([[size(row[column]) for column in columns] for row in rows])
    assert LengthGroupedSampler(lengths, settings).padding < 0.05


def test_whole_batches_leave_the_rest_for_another_epoch() -> None:
    """Only full ones, other rows left out each time; a set smaller than one batch is a batch all the same."""
    batches = LengthGroupedSampler(np.ones(50), BatchConfig(rows=16, drop_last=True), seed=1)
    left = []
    for epoch in range(3):
        found = batches.global_batches(epoch)
        assert [len(batch) for batch in found] == [16, 16, 16]
        left.append(set(range(50)) - set(rows_of(found)))
    assert left[0] != left[1] or left[1] != left[2]
    assert [
        len(batch) for batch in LengthGroupedSampler(np.ones(5), BatchConfig(rows=16, drop_last=True)).global_batches(0)
    ] == [5]
    assert [
        len(batch)
        for batch in LengthGroupedSampler(np.ones(32), BatchConfig(rows=16, drop_last=True)).global_batches(0)
    ] == [
        16,
        16,
    ]


@pytest.mark.parametrize("settings", [{"rows": 4}, {"tokens": 20}, {"tokens": 1}, {"rows": 4, "drop_last": True}])
def test_no_batch_has_fewer_rows_than_the_least(settings: dict[str, Any]) -> None:
    """A last row alone joins the batch before, or waits for another epoch where only whole batches are wanted."""
    whole = BatchConfig(min_rows=2, **settings)
    for n in (2, 5, 9, 13):
        found = LengthGroupedSampler(np.full(n, 5), whole).global_batches(0)
        assert min(len(batch) for batch in found) >= 2
        assert len(rows_of(found)) == (n if not whole.drop_last or n < 4 else n - n % 4)
