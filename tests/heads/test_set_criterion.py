"""The set loss: the best assignment, transformers' numbers, and labels that are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.heads.matcher import DetectionTargets, SetCriterionConfig, linear_assignment, match_costs
from anyformer.heads.set_criterion import set_loss, weighted_sum
from tests.checkpoints.compare import close
from tests.checkpoints.oracles import make_oracle, save_oracle

CPU = torch.device("cpu")


def things(n: int, n_labels: int = 2) -> dict[str, Tensor]:
    return {"class_labels": torch.randint(0, n_labels, (n,)), "boxes": torch.rand(n, 4) * 0.5 + 0.2}


@pytest.mark.parametrize("every_layer", [True, False])
@pytest.mark.parametrize("counts", [(3, 1), (5, 7), (0, 2), (0, 0)], ids=str)
def test_it_is_transformers_loss(every_layer: bool, counts: tuple[int, int], tmp_path: Any) -> None:
    """Fewer objects than queries, more, and none at all; with other weights than usual."""
    changes = {"class_cost": 2, "bbox_cost": 3, "giou_cost": 4, "bbox_loss_coefficient": 4, "eos_coefficient": 0.2}
    oracle = make_oracle("DetrForObjectDetection", auxiliary_loss=every_layer, decoder_layers=3, **changes)
    model = af.load(save_oracle(oracle, tmp_path))
    labels = [things(n) for n in counts]
    batch = {"pixel_values": torch.randn(2, 3, 64, 96), "labels": labels}
    ours, theirs = model(**batch), oracle(**batch)
    close(ours.loss, theirs.loss, "loss")
    assert set(ours.loss_dict) == set(theirs.loss_dict)
    assert len(ours.loss_dict) == (12 if every_layer else 4)
    for name, value in theirs.loss_dict.items():
        close(ours.loss_dict[name], torch.as_tensor(value), name)
    for mine, other in zip(ours.auxiliary_outputs or [], theirs.auxiliary_outputs or [], strict=True):
        for name, value in other.items():
            close(mine[name], value, name)
    ours.loss.backward()
    theirs.loss.backward()
    mine = model.heads["boxes"].classes.weight.grad
    close(mine, oracle.class_labels_classifier.weight.grad, "gradient")


def test_the_assignment_is_the_cheapest() -> None:
    """Against trying all of them: 2 layers, 3 images with 3, 0 and 4 objects, 4 queries."""
    logits, boxes = torch.randn(2, 3, 4, 6), torch.rand(2, 3, 4, 4)
    targets = DetectionTargets.of([things(n, 5) for n in (3, 0, 4)], 5, CPU, rows=3)
    cost = match_costs(logits, boxes, targets, SetCriterionConfig())
    match = linear_assignment(cost)
    for layer, row in itertools.product(range(2), range(3)):
        n = (3, 0, 4)[row]
        table = cost[layer, row]
        ways = [sum(float(table[q, k]) for k, q in enumerate(way)) for way in itertools.permutations(range(4), n)]
        chosen = match[layer, row]
        assert (chosen[n:] == -1).all() and len(set(chosen[:n].tolist())) == n
        assert sum(float(table[chosen[k], k]) for k in range(n)) == pytest.approx(min(ways))


def test_objects_that_fill_up_may_stand_anywhere() -> None:
    """Augmentation takes objects out of the middle of a row: the loss is that of the row without them."""
    logits, boxes = torch.randn(2, 2, 5, 4), torch.rand(2, 2, 5, 4)
    whole = DetectionTargets.of([things(4, 3), things(2, 3)], 3, CPU, rows=2)
    holes = DetectionTargets(whole.classes.clone(), whole.boxes)
    holes.classes[0, [0, 2]] = -100
    left = [{"class_labels": whole.classes[0, [1, 3]], "boxes": whole.boxes[0, [1, 3]]}]
    left += [{"class_labels": whole.classes[1, :2], "boxes": whole.boxes[1, :2]}]
    expected = set_loss(logits, boxes, DetectionTargets.of(left, 3, CPU, rows=2), SetCriterionConfig())
    for name, value in set_loss(logits, boxes, holes, SetCriterionConfig()).items():
        torch.testing.assert_close(value, expected[name])


def test_groups_are_matched_by_themselves() -> None:
    """Rows of an image's groups stand together; each part is the mean of the groups'."""
    logits, boxes = torch.randn(2, 6, 5, 4), torch.rand(2, 6, 5, 4)
    targets = DetectionTargets.of([things(3, 3), things(2, 3)], 3, CPU, rows=2)
    together = set_loss(logits, boxes, targets, SetCriterionConfig(), groups=3)
    alone = [set_loss(logits[:, i::3], boxes[:, i::3], targets, SetCriterionConfig()) for i in range(3)]
    for name, value in together.items():
        torch.testing.assert_close(value, torch.stack([one[name] for one in alone]).mean(0))


def test_costs_by_hand() -> None:
    """One query, one object: minus the class's share, the distance, minus the generalized overlap."""
    logits = torch.tensor([0.0, 1.0, 2.0]).log_softmax(-1).view(1, 1, 1, 3)
    boxes = torch.tensor([0.5, 0.5, 0.2, 0.2]).view(1, 1, 1, 4)
    target = DetectionTargets(torch.tensor([[1]]), torch.tensor([[[0.5, 0.5, 0.4, 0.2]]]))
    cost = float(match_costs(logits, boxes, target, SetCriterionConfig()))
    share = float(logits.exp()[..., 1])
    assert cost == pytest.approx(-share + 5 * 0.2 - 2 * 0.5, abs=1e-6)


def test_matching_survives_what_is_no_number() -> None:
    """A prediction that is NaN is taken last of all."""
    logits, boxes = torch.zeros(1, 1, 3, 3), torch.rand(1, 1, 3, 4)
    boxes[0, 0, 1] = float("nan")
    match = linear_assignment(
        match_costs(logits, boxes, DetectionTargets.of([things(2)], 2, CPU, rows=1), SetCriterionConfig())
    )
    assert sorted(match[0, 0].tolist()) == [0, 2]


def test_perfect_answers_cost_nothing() -> None:
    for focal in (False, True):
        labels = things(3, 4)
        logits = torch.full((1, 1, 6, 5 - focal), -30.0)
        boxes = torch.rand(1, 1, 6, 4)
        boxes[0, 0, 1:4] = labels["boxes"]
        logits[0, 0, torch.arange(1, 4), labels["class_labels"]] = 30.0
        if not focal:
            logits[0, 0, [0, 4, 5], 4] = 30.0
        config = SetCriterionConfig(focal=focal)
        parts = set_loss(logits, boxes, DetectionTargets.of([labels], 4, CPU, rows=1), config)
        assert float(weighted_sum(parts, config)) == pytest.approx(0, abs=1e-5)
        assert float(parts["cardinality_error"]) == 0
        worse = set_loss(logits.flip(2), boxes, DetectionTargets.of([labels], 4, CPU, rows=1), config)
        assert float(weighted_sum(worse, config)) > 0.5


def test_focal_loss_is_transformers() -> None:
    theirs = pytest.importorskip("transformers.loss.loss_for_object_detection")
    from anyformer.heads.set_criterion import focal_loss

    logits, wanted = torch.randn(2, 3, 7, 4), torch.randint(0, 5, (2, 3, 7))
    yes = torch.nn.functional.one_hot(wanted, 5)[..., :4].float()
    expected = theirs.sigmoid_focal_loss(logits.flatten(0, 2), yes.flatten(0, 2), num_boxes=1) * 4
    torch.testing.assert_close(focal_loss(logits, wanted).sum(), expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda labels: labels[0], "must be a list"),
        (lambda labels: labels[:1], "1 images but 2"),
        (lambda labels: [{"boxes": labels[0]["boxes"]}, labels[1]], "class_labels"),
        (lambda labels: [labels[0], {**labels[1], "boxes": labels[1]["boxes"][:1]}], r"labels\[1\] has 2 class_labels"),
        (
            lambda labels: [labels[0], {**labels[1], "class_labels": torch.tensor([0, 3])}],
            "class 3; .* 0 to 2",
        ),
        (lambda labels: [{**labels[0], "boxes": -labels[0]["boxes"]}, labels[1]], r"labels\[0\] has a box"),
    ],
)
def test_wrong_labels(change: Callable[[Any], Any], says: str) -> None:
    model = af.build("detr-tiny").eval()
    labels = change([things(2), things(2)])
    with pytest.raises(af.InputError, match=says):
        model(pixel_values=torch.randn(2, 3, 64, 64), labels=labels)
