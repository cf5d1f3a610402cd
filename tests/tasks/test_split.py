"""Rows held out of a file: how many, which, and of every class its fraction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyformer as af
from anyformer.data.rows import ListRows, Rows
from anyformer.tasks import find
from anyformer.tasks.split import hold_out


def table(labels: Sequence[object]) -> Rows:
    return ListRows([{"n": i, "label": label} for i, label in enumerate(labels)])


def counts(labels: Sequence[str], share: float | None = None) -> Counter[str]:
    found = hold_out(table(labels), share, labels)
    return Counter() if found.valid is None else Counter(row["label"] for row in found.valid)


@pytest.mark.parametrize(
    ("rows", "held"),
    [(2, 0), (3, 1), (10, 2), (48, 10), (60, 12), (250, 50), (1000, 50), (2000, 100), (100_000, 5000), (10**6, 10_000)],
)
def test_how_many(rows: int, held: int) -> None:
    """max(5%, min(50 rows, 20%)), at most 10,000 rows."""
    found = hold_out(table(range(rows)))
    assert (0 if found.valid is None else len(found.valid)) == held and len(found.train) == rows - held
    assert found.few == (0 < held < 50)


def test_the_same_ones_each_time_and_every_row_once() -> None:
    rows = table(range(20))
    found, again = hold_out(rows, 0.25, seed=3), hold_out(rows, 0.25, seed=3)
    assert found.valid is not None and again.valid is not None and list(found.valid) == list(again.valid)
    numbers = sorted(row["n"] for part in (found.train, found.valid) for row in part)
    assert numbers == list(range(20)) and [row["n"] for row in found.valid] != list(range(15, 20))
    assert hold_out(rows, 0.0).valid is None and hold_out(rows, 0.0).train is rows
    with pytest.raises(af.DataError, match=r"3 rows.*--valid"):
        hold_out(table(range(3)), 0.9)


def test_the_end_of_a_text() -> None:
    rows = table(range(40))
    rows.kind = "text"
    found = hold_out(rows, 0.1)
    assert found.valid is not None and [row["n"] for row in found.valid] == [36, 37, 38, 39]


def test_classes_keep_their_fractions() -> None:
    assert counts(["left", "right", "up", "down"] * 12) in [  # 48 clips: 2 rows, of whatever class, before
        Counter(dict(zip(("left", "right", "up", "down"), sizes, strict=True)))
        for sizes in ((3, 3, 2, 2), (3, 2, 3, 2), (3, 2, 2, 3), (2, 3, 3, 2), (2, 3, 2, 3), (2, 2, 3, 3))
    ]
    assert counts(["a"] * 900 + ["b"] * 100) == {"a": 45, "b": 5}
    assert counts(["a"] * 1000 + ["b"] * 3 + ["c"])["b"] == 1  # a rare class too, but not the only row of one
    assert "c" not in counts(["a"] * 1000 + ["b"] * 3 + ["c"])
    assert counts(["a"] * 60 + ["b"] * 40, 0.1) == {"a": 6, "b": 4}  # as many as somebody asks for
    assert sum(counts([str(i % 30) for i in range(300)], 0.05).values()) == 15
    many = [str(i % 200) for i in range(1000)]  # more classes than rows would be held out
    assert counts(many) == Counter(dict.fromkeys(set(many), 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=80), st.sampled_from([None, 0.1, 0.3, 0.5]))
def test_whatever_the_classes(labels: list[str], share: float | None) -> None:
    rows = table(labels)
    try:
        found = hold_out(rows, share, labels)
    except af.DataError:
        return
    every = [row["n"] for part in (found.train, found.valid or ()) for row in part]
    assert sorted(every) == list(range(len(labels)))
    trained, sizes, held = Counter(row["label"] for row in found.train), Counter(labels), counts(labels, share)
    assert set(trained) == set(sizes)  # no class is only evaluated on
    if share is None and len(labels) > 2 and held:
        assert all(held[label] >= 1 for label, size in sizes.items() if size > 1)
        several = sum(size for size in sizes.values() if size > 1)  # the only row of a class is never held out
        exact = {label: sum(held.values()) * size / several for label, size in sizes.items()}
        assert all(held[label] <= max(exact[label] + 1, 1) for label in sizes)


@pytest.mark.parametrize(
    ("task", "labels", "wanted"),
    [
        ("classify-text", ["1.0", "2", "x"], ["1", "2", "x"]),
        ("classify-text", ["1.5", "2", "3"], None),  # numbers
        ("classify-image", ["a", "b", 3], ["a", "b", "3"]),
        ("classify-audio", ["a", "b"], ["a", "b"]),
        ("translate", ["a", "b"], None),
    ],
)
def test_tasks_with_classes(task: str, labels: list[str], wanted: list[str] | None) -> None:
    kind = find(task)
    assert kind.row_classes(table(labels), kind.options_class()) == wanted
