"""Images are decoded once where there is room, by several threads; what cannot be opened is skipped and counted."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from anyformer.data.images.image_file import ImageError, ImageFile
from anyformer.data.images.loading import DecodedImages, take
from anyformer.data.rows import ListRows
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, InputError
from tests.training.picture_files import encode, square


def rows(n: int = 8, broken: tuple[int, ...] = ()) -> ListRows:
    content = [b"no image" if i in broken else encode(square((i, 2, 3), i)) for i in range(n)]
    return ListRows([{"image": ImageFile.of(content[i], f"number {i}"), "label": i} for i in range(n)])


class Opener:
    """Counts what it opens, and by whom."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.opened: list[int] = []
        self.threads: set[int] = set()
        self.seconds = seconds

    def __call__(self, row: Row) -> dict[str, Any]:
        self.opened.append(row["label"])
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        return {"image": np.asarray(row["image"].open()), "labels": row["label"]}


def test_each_is_opened_once_and_comes_in_order() -> None:
    opener = Opener()
    examples = DecodedImages(rows(), opener)
    for _ in range(3):
        assert [one["labels"] for one in take(examples, [5, 1, 5, 7])] == [5, 1, 5, 7]
    assert sorted(opener.opened) == [1, 5, 7]
    np.testing.assert_array_equal(examples[1]["image"], square((1, 2, 3), 1))


def test_no_more_is_kept_than_there_is_room_for() -> None:
    opener = Opener()
    size = square((0, 0, 0), 0).nbytes
    examples = DecodedImages(rows(), opener, room=3 * size)
    for _ in range(2):
        assert [one["labels"] for one in examples.take(range(8))] == list(range(8))
    assert len(examples.kept) == 3 and examples.room == 0 and len(opener.opened) == 8 + 5


def test_slow_ones_are_opened_beside_each_other() -> None:
    opener = Opener(seconds=0.005)
    assert [one["labels"] for one in DecodedImages(rows(), opener).take(range(8))] == list(range(8))
    assert len(opener.threads) > 1


def test_a_broken_picture_is_named() -> None:
    with pytest.raises(ImageError, match="number 3"):
        DecodedImages(rows(broken=(3,)), Opener()).take(range(8))


def test_in_training_it_is_skipped_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Its place goes to the next that opens, the same whenever it is asked for; each is told of once."""
    for order in (range(8), reversed(range(8))):
        examples = DecodedImages(rows(broken=(2, 3, 7)), Opener(), unreadable="replace")
        found = {i: examples[i]["labels"] for i in order}
        assert found == {0: 0, 1: 1, 2: 4, 3: 4, 4: 4, 5: 5, 6: 6, 7: 0} and len(examples.broken) == 3
        again = capsys.readouterr().err
        assert [again.count(f"number {i} ") for i in (2, 3, 7)] == [1, 1, 1] and "(3 so far)" in again
        assert [one["labels"] for one in examples.take([2, 3, 7])] == [4, 4, 0] and not capsys.readouterr().err


def test_where_none_opens_it_is_an_error() -> None:
    with pytest.raises(DataError, match=r"the rows given .*number 0"):
        DecodedImages(rows(broken=tuple(range(8))), Opener(), unreadable="replace").take([4])


def test_other_mistakes_are_said_with_their_row() -> None:
    """A label that is wrong is no broken image: it stops a training too."""

    def wrong(row: Row) -> dict[str, Any]:
        raise InputError("the label is new.")

    with pytest.raises(InputError, match="row 3: the label is new"):
        DecodedImages(rows(), wrong, unreadable="replace").take([2])
