"""Set decoding gives what transformers' image processor makes of the same outputs, sorted by score."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation.detection import select_detections
from anyformer.heads.boxes import BoxHead

SIZES = [(480, 640), (333, 500), (200, 100)]


@pytest.fixture(scope="module")
def model() -> af.Model:
    """With class scores spread far enough that some queries find something and some do not."""
    torch.manual_seed(0)
    made = af.build("detr-tiny", n_queries=12).double().eval()
    head = made.heads["boxes"]
    assert isinstance(head, BoxHead)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() > 1 and not name.startswith("boxes."):
                parameter.mul_(3.0)
        head.classes.weight.normal_(std=2.0)
        bias = head.classes.bias
        assert bias is not None
        bias.sub_(made(pixel_values=pictures()).logits.mean(dim=(0, 1)))  # no class is the favorite of all queries
    return made


def pictures() -> Tensor:
    return torch.randn(3, 3, 64, 96, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("sizes", [None, SIZES, torch.tensor(SIZES)], ids=["relative", "list", "tensor"])
def test_slots_are_those_of_transformers(model: af.Model, sizes: Any, threshold: float) -> None:
    processing = pytest.importorskip("transformers.models.detr.image_processing_pil_detr")
    with torch.no_grad():
        out = model(pixel_values=pictures())
    theirs = processing.DetrImageProcessorPil().post_process_object_detection(out, threshold, sizes)
    ours = model.detect(pixel_values=pictures(), threshold=threshold, target_sizes=sizes)
    assert len(ours) == len(theirs) == 3
    for found, wanted in zip(ours, theirs, strict=True):
        order = wanted["scores"].argsort(descending=True, stable=True)
        assert found.labels.tolist() == wanted["labels"][order].tolist()
        assert torch.allclose(found.scores, wanted["scores"][order], rtol=0, atol=1e-12)
        assert torch.allclose(found.boxes, wanted["boxes"][order], rtol=0, atol=1e-9)
        assert found.queries.shape == found.labels.shape
    assert (sum(len(found.labels) for found in ours) > 0) == (threshold < 1)


def test_some_queries_find_something_and_some_do_not(model: af.Model) -> None:
    """Otherwise the threshold would go untested."""
    rows = model.detect(pictures(), threshold=0.5)
    assert 0 < sum(len(row.labels) for row in rows) < 36
    assert len({label for row in rows for label in row.labels.tolist()}) > 1


def test_by_hand() -> None:
    slots = {"labels": torch.tensor([4, 5, 6, 7]), "scores": torch.tensor([0.6, 0.9, 0.2, 0.6]), "points": torch.eye(4)}
    found = select_detections(slots, 0.5)
    assert found.labels.tolist() == [5, 4, 7] and found.queries.tolist() == [1, 0, 3]
    assert torch.equal(found.points, torch.eye(4)[[1, 0, 3]])


def test_a_box_by_hand() -> None:
    """Center (0.5, 0.25), half as wide as the image and a tenth as high, in 200 × 100 pixels (height, width)."""
    fields = {"pred_boxes": torch.tensor([[[0.5, 0.25, 0.5, 0.1]]])}
    head = BoxHead(8, 3, "decoder")
    boxes = head.postprocess(fields, torch.tensor([[200.0, 100.0]]))["boxes"]
    assert boxes.flatten().tolist() == pytest.approx([25.0, 40.0, 75.0, 60.0])


def test_bad_input(model: af.Model) -> None:
    for options, words in (
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"target_sizes": [(3, 4)]}, r"must be \[3, 2\]"),
        ({"pixels": 3}, "takes no"),
    ):
        with pytest.raises(af.InputError, match=words):
            model.detect(pixel_values=pictures(), **options)
    with pytest.raises(af.InputError, match="vit model has no object queries"):
        af.build("vit-tiny").detect(pixel_values=pictures())
