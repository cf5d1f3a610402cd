"""COCO's outlines as pixels, against pycocotools and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.errors import InputError
from anyformer.pictures.outlines import classes, fill, unpack

coco = pytest.importorskip("pycocotools.mask")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_runs_are_pycocotools(share: float) -> None:
    mask = np.random.default_rng(1).random((37, 23)) < share
    packed = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert np.array_equal(fill(packed, (37, 23)), mask)
    text = {"size": packed["size"], "counts": packed["counts"].decode()}
    assert np.array_equal(fill(text, (37, 23)), mask)
    lengths = unpack(packed["counts"])
    assert np.array_equal(fill({"size": [37, 23], "counts": lengths}, (37, 23)), mask)


@pytest.mark.parametrize("seed", range(4))
def test_polygons_are_nearly_pycocotools(seed: int) -> None:
    """Theirs goes along the outline in fifths of pixels; pixels on the edge may differ."""
    angles = np.sort(np.random.default_rng(seed).random(9) * 2 * np.pi)
    corners = np.stack([50 + 35 * np.cos(angles), 40 + 30 * np.sin(angles)], axis=1).ravel().tolist()
    theirs = coco.decode(coco.merge(coco.frPyObjects([corners], 90, 110))).astype(bool)
    ours = fill([corners], (90, 110))
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.98


def test_a_rectangle_by_hand() -> None:
    """From x 1 to 4 and y 2 to 3: three pixels of the third row; half outside the picture it is cut off."""
    expected = np.zeros((5, 6), dtype=bool)
    expected[2, 1:4] = True
    assert np.array_equal(fill([[1, 2, 4, 2, 4, 3, 1, 3]], (5, 6)), expected)
    beyond = fill([[-3, -3, 2, -3, 2, 2, -3, 2]], (5, 6))
    assert beyond[:2, :2].all() and beyond.sum() == 4


def test_smaller_objects_lie_on_larger_ones() -> None:
    large, small = [[0, 0, 6, 0, 6, 6, 0, 6]], [[1, 1, 3, 1, 3, 3, 1, 3]]
    made = classes([small, large], [7, 3], (6, 6))
    assert (made[1:3, 1:3] == 7).all() and (made == 3).sum() == 32
    assert (classes([None], [1], (2, 2), nothing=9) == 9).all()


@pytest.mark.parametrize(
    ("segment", "words"),
    [
        ([[1, 2, 3, 4]], "4 numbers"),
        ({"size": [3, 3], "counts": [9]}, "3 x 3; the picture has 4 x 4"),
        ({"size": [4, 4], "counts": [3, 4]}, "cover 7 pixels"),
        ("circle", "neither polygons nor runs"),
    ],
)
def test_bad_outlines(segment: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fill(segment, (4, 4))
