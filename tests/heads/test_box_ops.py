"""Boxes: their spellings, and how much they overlap, against transformers' and by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.heads.box_ops import area, clip, generalized_iou, iou, is_degenerate, to_cxcywh, to_xywh, to_xyxy


def some(n: int) -> Tensor:
    start = torch.rand(n, 2, dtype=torch.float64)
    return torch.cat([start, start + torch.rand(n, 2, dtype=torch.float64)], dim=1)


def test_spellings_go_round() -> None:
    corners = torch.tensor([[10.0, 20.0, 30.0, 60.0]])
    assert to_cxcywh(corners).tolist() == [[20.0, 40.0, 20.0, 40.0]]
    assert to_xywh(corners).tolist() == [[10.0, 20.0, 20.0, 40.0]]
    boxes = some(7)
    for spelling, made in (("cxcywh", to_cxcywh(boxes)), ("xywh", to_xywh(boxes)), ("xyxy", boxes)):
        torch.testing.assert_close(to_xyxy(made, spelling), boxes)  # type: ignore[arg-type]
        torch.testing.assert_close(to_cxcywh(made, spelling), to_cxcywh(boxes))  # type: ignore[arg-type]


def test_overlaps_are_those_of_transformers() -> None:
    theirs = pytest.importorskip("transformers.loss.loss_for_object_detection")
    a, b = some(9), some(5)
    torch.testing.assert_close(area(a), theirs.box_area(a))
    torch.testing.assert_close(iou(a[:, None], b), theirs.box_iou(a, b)[0])
    torch.testing.assert_close(generalized_iou(a[:, None], b), theirs.generalized_box_iou(a, b))


def test_overlap_by_hand() -> None:
    a, b = torch.tensor([0.0, 0, 2, 2]), torch.tensor([1.0, 1, 3, 3])
    assert float(iou(a, b)) == pytest.approx(1 / 7)
    assert float(generalized_iou(a, b)) == pytest.approx(1 / 7 - 2 / 9)
    far = torch.tensor([8.0, 0, 10, 2])
    assert float(generalized_iou(a, far)) == pytest.approx(0 - 12 / 20)


def test_boxes_of_nothing_give_numbers_and_slopes() -> None:
    """A point, a line, a box the wrong way round: no NaN, neither in the value nor in the gradient."""
    odd = torch.tensor([[0.5, 0.5, 0.5, 0.5], [0.1, 0.2, 0.1, 0.9], [0.6, 0.6, 0.2, 0.2]], requires_grad=True)
    for other in (odd.detach(), some(3).float()):
        value = generalized_iou(odd[:, None], other) + iou(odd[:, None], other)
        assert value.isfinite().all()
        (slope,) = torch.autograd.grad(value.sum(), odd)
        assert slope.isfinite().all()
    assert float(iou(odd[0], odd[0]).detach()) == 0


def test_broken_boxes_are_found_and_others_cut_to_the_picture() -> None:
    boxes = torch.tensor([[0.0, 0, 5, 5], [3, 3, 3, 9], [float("nan"), 0, 1, 1], [-4, -4, 20, 30], [30, 1, 40, 5]])
    assert is_degenerate(boxes).tolist() == [False, True, True, False, False]
    inside = clip(boxes[[0, 3, 4]], height=10, width=16)
    assert inside.tolist() == [[0, 0, 5, 5], [0, 0, 16, 10], [16, 1, 16, 5]]
    assert is_degenerate(inside).tolist() == [False, False, True]
