"""Outlines become the masks that pycocotools makes of them, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.images.coco_masks import decode_mask, decode_rle, fill_polygon, semantic_mask
from anyformer.errors import DataError

coco = pytest.importorskip("pycocotools.mask")

HEIGHT, WIDTH = 23, 31
places = st.tuples(st.floats(-4, WIDTH + 4), st.floats(-4, HEIGHT + 4))


@settings(max_examples=150, deadline=None)
@given(st.lists(places, min_size=3, max_size=9), st.booleans())
def test_polygons(corners: list[tuple[float, float]], whole: bool) -> None:
    flat = [float(round(value)) if whole else value for corner in corners for value in corner]
    wanted = coco.decode(coco.frPyObjects([flat], HEIGHT, WIDTH))[:, :, 0].astype(bool)
    np.testing.assert_array_equal(fill_polygon(flat, HEIGHT, WIDTH), wanted)


def test_a_polygon_that_goes_far_away_is_cut_near_the_picture() -> None:
    """The band between two lines from far left to far right, and what never comes near."""
    for far in (1e5, 3e15, 1e300):
        band = fill_polygon([-far, 5, far, 5, far, 9, -far, 9], HEIGHT, WIDTH)
        assert band[5:9].all() and band.sum() == 4 * WIDTH
    slope = fill_polygon([-1e6, -1e6, 1e6, 1e6, -1e6, 1e6], HEIGHT, WIDTH)  # below the diagonal
    rows, columns = np.indices(slope.shape)
    assert slope[rows > columns + 1].all() and not slope[columns > rows + 1].any()
    assert (
        not fill_polygon([3e15, 3e15, 4e15, 3e15, 4e15, 4e15], HEIGHT, WIDTH).any()
        and not fill_polygon([], HEIGHT, WIDTH).any()
    )


def test_several_polygons_are_one_mask() -> None:
    polygons = [[1.0, 1, 8, 1, 8, 8, 1, 8], [5.0, 5, 20, 5, 20, 18.5]]
    merged = coco.merge(coco.frPyObjects(polygons, HEIGHT, WIDTH))
    np.testing.assert_array_equal(decode_mask(polygons, HEIGHT, WIDTH), coco.decode(merged).astype(bool))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.98))
def test_runs_plain_and_packed(seed: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((HEIGHT, WIDTH)) < share
    packed = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    np.testing.assert_array_equal(decode_mask(packed, HEIGHT, WIDTH), mask)
    np.testing.assert_array_equal(decode_mask({**packed, "counts": packed["counts"].decode()}, HEIGHT, WIDTH), mask)
    flat = mask.T.reshape(-1)
    ends = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *ends, flat.size]).tolist()
    counts = [0, *counts] if flat[0] else counts
    np.testing.assert_array_equal(decode_mask({"counts": counts, "size": [HEIGHT, WIDTH]}, HEIGHT, WIDTH), mask)
    assert decode_rle(packed["counts"]) == counts


def test_smaller_outlines_lie_on_top() -> None:
    large, small = [[0.0, 0, 10, 0, 10, 10, 0, 10]], [[2.0, 2, 5, 2, 5, 5, 2, 5]]
    for segments, kinds in (([large, small], [1, 2]), ([small, large], [2, 1])):
        painted = semantic_mask(segments, kinds, 12, 12, nothing=9)
        assert painted[3, 3] == 2 and painted[8, 8] == 1 and painted[11, 11] == 9
    assert not decode_mask(None, 4, 4).any() and not decode_mask([], 4, 4).any()


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        ({"counts": [3], "size": [4, 4]}, r"\b3; .* 16 pixels"),
        ({"counts": [16], "size": [5, 5]}, '"size" 5 x 5; .* 4 x 4'),
        ({"counts": [-4, 20], "size": [4, 4]}, "-4"),
        ({"counts": "\u20ac", "size": [4, 4]}, '^(?!.*"size").*"counts"'),
        ({"counts": "ooo", "size": [4, 4]}, '^(?!.*"size").*"counts"'),
        ({"counts": ["a"], "size": [4, 4]}, '^(?!.*"size").*"counts"'),
        ({"counts": 16, "size": [4, 4]}, '^(?!.*"size").*"counts"'),
        ({"size": [4, 4]}, '"counts" .*"size"'),
        ({"counts": [16], "size": 4}, '"counts" .*"size"'),
        ([["a", "b"]], "polygon.* x, y"),
        ([[1.0, 2, 3]], "polygon.* x, y"),
        ([[1.0, 2, float("nan"), 3]], "polygon.* x, y"),
        ("words", r"\bstr\b"),
    ],
)
def test_what_is_no_outline_says_so(segment: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        decode_mask(segment, 4, 4)
    with pytest.raises(DataError, match=f"^object 2: .*{said.removeprefix('^')}"):
        semantic_mask([None, segment], [1, 1], 4, 4)
