"""Figures of poses and of pixels, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.metrics import keypoints, segmentation


def test_errors_and_shares_of_joints() -> None:
    found = np.array([[[0.0, 0.0], [3.0, 4.0]], [[1.0, 1.0], [9.0, 9.0]]])
    right = np.array([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [0.0, 0.0]]])
    counts = np.array([[1.0, 1.0], [1.0, 0.0]])  # the last joint is not known
    apart = keypoints.distances(found, right)
    assert apart[0].tolist() == [0.0, 5.0] and apart[1, 0] == 1.0
    assert keypoints.mean_error(apart, counts) == pytest.approx(6 / 3)
    lengths = np.array([10.0, 4.0])
    assert keypoints.normalized_mean_error(apart, counts, lengths) == pytest.approx((2.5 / 10 + 1 / 4) / 2)
    assert keypoints.pck(apart, counts, lengths, enough=0.25) == pytest.approx(2 / 3)
    assert keypoints.pck(apart, counts, lengths, enough=0.5) == 1.0
    # An image without a length does not count.
    assert keypoints.normalized_mean_error(apart, counts, np.array([0.0, 4.0])) == pytest.approx(0.25)
    assert keypoints.pck(apart, counts, np.array([0.0, 4.0]), enough=0.25) == 1.0


def test_classes_of_pixels() -> None:
    """Class 0: 2 of a union of 4; class 1: 2 of 5; class 2: said once, never right; class 3 does not occur."""
    right = np.array([[0, 0, 0, 1, 1], [1, 1, 255, 255, 255]])
    found = np.array([[0, 0, 1, 1, 1], [0, 2, 0, 1, 2]])
    counts = segmentation.pixel_confusion(found, right, 4, 255)
    assert counts.tolist() == [[2, 1, 0, 0], [1, 2, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    figures = segmentation.segmentation_metrics(counts)
    assert figures["mean_iou"] == pytest.approx((2 / 4 + 2 / 5 + 0) / 3)
    assert figures["pixel_accuracy"] == pytest.approx(4 / 7)
    assert figures["mean_accuracy"] == pytest.approx((2 / 3 + 2 / 4) / 2)


def test_mean_iou_is_sklearns() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    chance = np.random.default_rng(0)
    right, found = chance.integers(0, 5, (2, 4000))
    expected = sklearn.jaccard_score(right, found, average="macro")
    assert segmentation.segmentation_metrics(segmentation.pixel_confusion(found, right, 5, 255))[
        "mean_iou"
    ] == pytest.approx(expected)
