"""Average precision is COCO's own, by hand and against pycocotools."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from anyformer.metrics.detection import GroundTruthBoxes, PredictedBoxes, average_precision, coco_metrics


def random_case(seed: int, pictures: int = 6, classes: int = 3) -> tuple[list[PredictedBoxes], list[GroundTruthBoxes]]:
    """Things of all sizes, some of them crowds; answers near them and far, with scores that are sometimes equal."""
    chance = np.random.default_rng(seed)
    found, truth = [], []
    for _ in range(pictures):
        n, extra = int(chance.integers(0, 9)), int(chance.integers(0, 9))
        start = chance.uniform(0, 300, (n, 2))
        boxes = np.concatenate([start, start + chance.uniform(4, 220, (n, 2))], axis=1)
        labels = chance.integers(0, classes, n)
        truth.append(GroundTruthBoxes.of(labels, boxes, crowd=chance.random(n) < 0.15))
        near = np.repeat(boxes, 2, axis=0) + chance.normal(0, 6, (2 * n, 4))
        start = chance.uniform(0, 300, (extra, 2))
        far = np.concatenate([start, start + chance.uniform(4, 220, (extra, 2))], axis=1)
        places = np.concatenate([near, far])
        places[:, 2:] = np.maximum(places[:, 2:], places[:, :2] + 1)
        said = np.concatenate([np.repeat(labels, 2), chance.integers(0, classes, extra)])
        found.append(PredictedBoxes(said, np.round(chance.random(len(said)), 1), places))
    return found, truth


@pytest.mark.parametrize("seed", range(12))
def test_it_is_pycocotools(seed: int) -> None:
    pytest.importorskip("pycocotools")
    found, truth = random_case(seed)
    theirs = coco_metrics(found, truth)
    for name, value in average_precision(found, truth).items():
        assert value == pytest.approx(theirs[name], abs=1e-6), name
    assert "pycocotools" in str(theirs["signature"])


def test_many_answers() -> None:
    """Only the hundred surest of an image and class count."""
    pytest.importorskip("pycocotools")
    chance = np.random.default_rng(0)
    start = chance.uniform(0, 200, (180, 2))
    boxes = np.concatenate([start, start + 40], axis=1)
    found = [PredictedBoxes(np.zeros(180, dtype=np.int64), chance.random(180), boxes)]
    truth = [GroundTruthBoxes.of(np.zeros(90), boxes[:90])]
    theirs = coco_metrics(found, truth)
    for name, value in average_precision(found, truth).items():
        assert value == pytest.approx(theirs[name], abs=1e-6), name


def test_by_hand() -> None:
    """Two things; the surest answer is wrong, the next right: precision ½ up to a recall of ½, nothing above."""
    truth = [GroundTruthBoxes.of([0, 0], [[0, 0, 40, 40], [100, 100, 140, 140]])]
    found = [PredictedBoxes(np.array([0, 0]), np.array([0.9, 0.8]), np.array([[200.0, 0, 240, 40], [0, 0, 40, 30]]))]
    figures = average_precision(found, truth)
    assert figures["ap50"] == pytest.approx(0.5 * 51 / 101)
    assert figures["ap75"] == pytest.approx(0.5 * 51 / 101)  # its overlap is just ¾
    assert figures["ap"] == pytest.approx(0.5 * 51 / 101 * 6 / 10)
    assert figures["apm"] == pytest.approx(figures["ap"]) and figures["apl"] == -1


def test_perfect_and_empty() -> None:
    truth = [GroundTruthBoxes.of([0, 1], [[0, 0, 40, 40], [5, 5, 9, 9]]), GroundTruthBoxes.of([], [])]
    right = [PredictedBoxes(one.labels, np.ones(len(one.labels)), one.boxes) for one in truth]
    assert average_precision(right, truth)["ap"] == pytest.approx(1)
    nothing = [PredictedBoxes(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 4)))] * 2
    assert average_precision(nothing, truth)["ap"] == 0
    assert average_precision(right[1:], truth[1:])["ap"] == -1


def test_without_pycocotools_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("pycocotools"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    found, truth = random_case(3)
    figures = coco_metrics(found, truth)
    assert "numpy" in str(figures["signature"])
    assert figures["ap"] == average_precision(found, truth)["ap"]
