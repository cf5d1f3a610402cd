"""Boxes end at the image's edges, and a detector for small data finds a thing once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import pretrained
from anyformer.forward_context import Output
from anyformer.heads.box_ops import not_suppressed, to_xywh
from anyformer.tasks.detect import Detect
from tests.checkpoints.oracles import make_oracle, save_oracle
from tests.tasks.learn import begin, listed
from tests.training import picture_files as pictures

ROWS = listed(
    *(
        {"image": af.tasks.picture.ImageFile.of(pixels), "boxes": np.array([[2.0, 2, 9, 9]]), "classes": [label]}
        for label, pixels in pictures.labeled(6)
    )
)


def detector(folder: Path | None = None, **settings: Any) -> Any:
    config = af.registry.recipe("detr-tiny").config.replace(
        stem=af.registry.recipe("detr-small").config.stem.replace(widths=(16, 24, 32), depths=(0, 1, 1)),
        **{"anchors": True, "auxiliary_loss": True, **settings},
    )
    return begin("detect", "detr-tiny", ROWS, model=config)


def overlaps(boxes: Tensor) -> Any:
    """IoU of each with each, by pycocotools."""
    mask = pytest.importorskip("pycocotools.mask")
    sizes = to_xywh(boxes).double().numpy()
    return mask.iou(sizes, sizes, [0] * len(sizes))


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_what_stays_and_what_goes(threshold: float) -> None:
    """Of boxes that stay, no two of a class overlap by more; every box that goes does so with a surer one that stays.
    There is one such set only."""
    chance = np.random.default_rng(3)
    start = torch.from_numpy(chance.uniform(0, 20, (150, 2)))
    boxes = torch.cat([start, start + torch.from_numpy(chance.uniform(5, 20, (150, 2)))], dim=1)
    labels = torch.from_numpy(chance.integers(0, 2, 150))
    keep = not_suppressed(boxes, labels, threshold).numpy()
    near = (overlaps(boxes) > threshold) & (labels[:, None] == labels).numpy() & ~np.eye(150, dtype=bool)
    assert 0 < keep.sum() < 150 and not near[np.ix_(keep, keep)].any()
    for i in np.flatnonzero(~keep):
        assert near[i, :i][keep[:i]].any()


def test_few_boxes() -> None:
    assert not_suppressed(torch.zeros(0, 4), torch.zeros(0), 0.5).shape == (0,)
    same = torch.tensor([[0.0, 0, 4, 4]]).expand(3, 4)
    assert not_suppressed(same, torch.tensor([1, 1, 2]), 0.5).tolist() == [True, False, True]


FOUND = Output(
    labels=torch.tensor([0, 0, 1, 0, 0]),
    scores=torch.tensor([0.9, 0.8, 0.7, 0.6, 0.55]),
    boxes=torch.tensor([[-5.0, 2, 20, 20], [0, 2, 20, 21], [0, 2, 20, 21], [25, 25, 40, 50], [33, 0, 40, 9]]),
    queries=torch.arange(5),
)


def test_boxes_end_at_the_edge_and_duplicates_go(monkeypatch: pytest.MonkeyPatch) -> None:
    task = detector()
    monkeypatch.setattr(task.model, "detect", lambda **given: [FOUND])
    picture = np.zeros((32, 32, 3), dtype=np.uint8)
    found = task(picture)
    assert [thing.query for thing in found] == [0, 2, 3]  # 1 is 0 again, 4 lies outside
    assert found[0].box == (0, 2, 20, 20) and found[2].box == (25, 25, 32, 32)
    assert [thing.query for thing in task(picture, nms=1.0)] == [0, 1, 2, 3]
    assert task(picture).draw().size


def test_metrics_are_of_what_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second box on one thing, surer than the box on the next thing, counts as a mistake unless it is left out; a box
    that reaches over the edge is as good as the one that ends there."""
    task = detector()
    said = Output(
        labels=torch.tensor([0, 0, 0]),
        scores=torch.tensor([0.9, 0.8, 0.7]),
        boxes=torch.tensor([[2.0, 2, 9, 9], [2, 2, 9, 9], [20, 20, 45, 60]]),
        queries=torch.arange(3),
    )
    monkeypatch.setattr("anyformer.tasks.detect.postprocess", lambda head, out, least, sizes: [said] * len(sizes))
    boxes = np.array([[2.0, 2, 9, 9], [20, 20, 32, 32]])
    rows = listed(*({**row, "boxes": boxes, "classes": [task.labels[0]] * 2} for row in ROWS))
    assert task.evaluate(rows)["ap"] == pytest.approx(1)
    task.settings = task.settings.replace(nms=1.0)
    assert task.evaluate(rows)["ap"] < 0.9


def test_on_for_small_data_saved_and_found_again(tmp_path: Path) -> None:
    assert detector().settings.nms == 0.7 and detector(anchors=False).settings.nms == 1.0
    task = begin("detect", "detr-tiny", ROWS, model=detector().model.config, options={"nms": 0.6})
    task.save(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["task"]["nms"] == 0.6 and af.task("detect", tmp_path / "m").settings.nms == 0.6
    assert af.task("detect", tmp_path / "m", nms=0.5).settings.nms == 0.5
    del config["task"]["nms"]  # a folder of before
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    assert af.task("detect", tmp_path / "m").settings.nms == 0.7
    with pytest.raises(af.ConfigError, match="nms is 0"):
        af.task("detect", tmp_path / "m", nms=0.0)


def test_off_for_the_papers_model(tmp_path: Path) -> None:
    """Whose answers are transformers'."""
    save_oracle(make_oracle("DetrForObjectDetection"), tmp_path)
    assert af.task("detect", tmp_path).settings.nms == 1.0


def test_cells_are_found_once() -> None:
    found = pretrained.find("cells")
    if found is None or found.path is None:
        pytest.skip("cells is not here")
    work: Any = af.task("detect", "cells")
    assert isinstance(work, Detect) and work.settings.nms == 0.7
    things = work(str(found.input()), threshold=0.1)
    boxes, labels = torch.tensor([thing.box for thing in things]), [thing.label for thing in things]
    same = np.array(labels)[:, None] == np.array(labels)
    assert len(boxes) > 10 and not ((overlaps(boxes) > 0.7) & same & ~np.eye(len(boxes), dtype=bool)).any()
    assert bool((boxes >= 0).all()) and bool((boxes[:, 2:] <= torch.tensor([640, 480])).all())
