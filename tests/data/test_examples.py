"""Prepared examples: what went in comes out, from memory and from disk; made again only when something changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer as af
from anyformer.data import examples as room
from anyformer.data.examples import LazyExamples, prepare
from anyformer.data.rows import ListRows, read

ROWS = ListRows([{"text": "ab" * i, "label": i} for i in range(7)])


class Counting:
    """Prepares, and remembers how many rows it saw."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.seen += len(rows)
        return [
            {"ids": [ord(c) for c in row["text"]], "label": row["label"], "score": row["label"] / 2} for row in rows
        ]


@pytest.mark.parametrize("cached", [False, True])
def test_what_goes_in_comes_out(cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK", 3)
    seen: list[tuple[int, int]] = []
    found = prepare(
        ROWS, Counting(), cache=tmp_path if cached else None, progress=lambda done, of: seen.append((done, of))
    )
    assert len(found) == 7 and seen == [(3, 7), (6, 7), (7, 7)]
    for i, example in enumerate(found):
        assert example["ids"].tolist() == [97, 98] * i and example["label"] == i and example["score"] == i / 2
        assert found.row(i) == i
    assert found.sizes("ids").tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert found.lengths.tolist() == [1, 2, 4, 6, 8, 10, 12]
    assert isinstance(found.fields["ids"].flat, np.memmap) is cached


def test_the_cache_notices_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "ab", "label": 1}\n')
    counts = []
    for key, content in (("a", None), ("a", None), ("b", None), ("a", '{"text": "abc", "label": 1}\n'), ("a", None)):
        if content is not None:
            file.write_text(content)
        count = Counting()
        prepare(read(file), count, cache=tmp_path / "cache", key=key)
        counts.append(count.seen)
    assert counts == [1, 0, 1, 1, 0]


def test_a_row_may_give_several_examples_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK", 3)

    def split(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"row": i, "ids": [n]} for i, row in enumerate(rows) for n in range(row["label"] % 3)]

    found = prepare(ROWS, split)
    assert [found.row(i) for i in range(len(found))] == [1, 2, 2, 4, 5, 5]
    assert [int(example["ids"][0]) for example in found] == [0, 0, 1, 0, 0, 1]


def test_a_bad_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left in the cache."""
    monkeypatch.setattr(room, "CHUNK", 3)

    def picky(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(row["label"] == 4 for row in rows):
            raise af.InputError("four is not a label.")
        return [{"ids": [1]} for _ in rows]

    with pytest.raises(af.InputError, match=r"^the rows given, row 5: four is not a label\.$"):
        prepare(ROWS, picky, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_examples_on_demand() -> None:
    """Made when asked for, and again when asked again; a bad row is named then."""
    made: list[int] = []

    def make(row: dict[str, Any]) -> dict[str, Any]:
        if row["label"] == 3:
            raise af.InputError("three is no image.")
        made.append(row["label"])
        return {"pixels": np.full(4, row["label"])}

    found = LazyExamples(ROWS, make)
    assert len(found) == 7 and made == [] and found.row(5) == 5 and found.lengths.tolist() == [1] * 7
    assert found[2]["pixels"].tolist() == [2] * 4 and found[2] and made == [2, 2]
    with pytest.raises(af.InputError, match=r"row 4: three is no image"):
        found[3]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(af.DataError, match="ANYFORMER_CACHE"):
        prepare(ROWS, Counting(), cache=tmp_path / "file" / "cache")
