"""DETR's settings for little data: anchors that layers move, groups of them, a small stem, plain patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.positions import Sinusoidal2D
from anyformer.core.tokens import Tokens
from anyformer.inputs.anchors import box_sinusoids, sample_grid
from anyformer.layers.resnet import ConvStem, ConvStemConfig, PatchEmbed

STEM = ConvStemConfig(widths=(8, 16, 24), depths=(0, 1, 1))
ANCHORS: dict[str, Any] = {"stem": STEM, "anchors": True, "auxiliary_loss": True, "n_queries": 9}
VARIANTS: dict[str, dict[str, Any]] = {
    "stem": {"stem": STEM},
    "patches": {"patch_size": 16, "n_patch_layers": 2},
    "anchors": ANCHORS,
    "groups": {**ANCHORS, "groups": 3},
    "patches and anchors": {"patch_size": 16, "n_patch_layers": 1, "anchors": True, "auxiliary_loss": True},
}


def labels() -> list[dict[str, Tensor]]:
    one = {"class_labels": torch.tensor([0, 2]), "boxes": torch.tensor([[0.3, 0.4, 0.2, 0.2], [0.6, 0.6, 0.5, 0.4]])}
    return [one, {name: value[:1] for name, value in one.items()}]


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_saves_and_loads(variant: str, tmp_path: Path) -> None:
    """Every parameter has a gradient; steps lower the loss; the folder is the same model."""
    torch.manual_seed(0)
    model = af.build("detr-tiny", dropout=0.0, **VARIANTS[variant]).train()
    batch = {"pixel_values": torch.randn(2, 3, 64, 96), "labels": labels()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(40):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        if step == 1:  # what places boxes starts at zero, and hands nothing on in the first step
            without = [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()]
            assert not [name for name in without if "vectors" not in name], without
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    model.eval().save(tmp_path / "x")
    again = af.load(tmp_path / "x", optimize=False)
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).pred_boxes, model(**batch).pred_boxes, rtol=0, atol=0)
    with pytest.raises(af.ConfigError, match="own form"):
        model.save(tmp_path / "hf", format="hf")


def test_groups_are_for_training_only() -> None:
    """An image shows one set of queries, the first group's; in training and after."""
    model = af.build("detr-tiny", dropout=0.0, **VARIANTS["groups"]).eval()
    pixels = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        after, during = model(pixel_values=pixels), model.train()(pixel_values=pixels, labels=labels())
    for name in ("logits", "pred_boxes", "last_hidden_state", "intermediate_hidden_states"):
        torch.testing.assert_close(during[name], after[name])
    assert after.logits.shape == (2, 9, 4) and during.auxiliary_outputs[0]["logits"].shape == (2, 9, 4)
    assert torch.isfinite(during.loss)


def test_fresh_anchors_are_an_even_grid_and_stay_there() -> None:
    model = af.build("detr-tiny", **ANCHORS).eval()
    with torch.no_grad():
        boxes = model(pixel_values=torch.randn(1, 3, 64, 96)).pred_boxes[0]
    third = torch.tensor([1, 3, 5]) / 6
    torch.testing.assert_close(boxes[:, 0], third.repeat(3))
    torch.testing.assert_close(boxes[:, 1], third.repeat_interleave(3))


def test_each_layer_moves_the_boxes() -> None:
    """Auxiliary boxes are the steps on the way: each differs from the last, and no gradient flows from box to box."""
    torch.manual_seed(0)
    model = af.build("detr-tiny", dropout=0.0, **ANCHORS).eval()
    stack: Any = model.stages["decoder"].stack
    torch.nn.init.normal_(stack.step[-1].weight, std=0.3)
    out = model(pixel_values=torch.randn(2, 3, 64, 96), labels=labels())
    first = out.auxiliary_outputs[0]["pred_boxes"]
    assert (first - out.pred_boxes).abs().min(dim=-1).values.max() > 1e-3
    anchors = model.stages["decoder"].inputs.anchors.weight
    (slope,) = torch.autograd.grad(first.sum(), anchors, retain_graph=True)
    assert slope.abs().max() > 0


def test_a_padded_picture_is_the_picture_alone() -> None:
    """Queries look at the real part: the same content and answer, whatever stands beside it on the canvas."""
    torch.manual_seed(0)
    model = af.build("detr-tiny", **{**ANCHORS, "groups": 2}).eval().double()
    pixels = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    mask = torch.ones(2, 64, 96, dtype=torch.long)
    mask[1, 40:], mask[1, :, 64:] = 0, 0
    with torch.no_grad():
        both = model(pixel_values=pixels, pixel_mask=mask)
        alone = model(pixel_values=pixels[1:], pixel_mask=mask[1:])
    torch.testing.assert_close(both.logits[1], alone.logits[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(both.pred_boxes[1], alone.pred_boxes[0], rtol=1e-9, atol=1e-9)


def test_sampling_between_cells() -> None:
    """At the middle of a cell its token, between two their mean; with padding, shares of the real part."""
    grid = torch.arange(12.0).view(1, 12, 1)
    points = torch.tensor([[0.125, 1 / 6], [0.25, 1 / 6], [0.875, 5 / 6]])
    assert sample_grid(Tokens(grid, grid=(3, 4)), points).flatten().tolist() == pytest.approx([0, 0.5, 11], abs=1e-5)
    mask = torch.zeros(1, 3, 4, dtype=torch.bool)
    mask[:, :2, :2] = True
    found = sample_grid(Tokens(grid, mask.flatten(1), grid=(3, 4)), torch.tensor([[0.25, 0.25], [0.75, 0.75]]))
    assert found.flatten().tolist() == pytest.approx([0, 5], abs=1e-5)


def test_places_are_told_as_cells_are() -> None:
    """A box's sines are those that the encoder's cells have: x and y of the last cell are 1."""
    code = Sinusoidal2D(16)(Tokens(torch.zeros(1, 12, 16), grid=(3, 4)))[0]
    torch.testing.assert_close(box_sinusoids(torch.tensor([1.0, 1.0]), 16), code[-1], rtol=0, atol=1e-4)
    torch.testing.assert_close(box_sinusoids(torch.tensor([1 / 3, 0.5]), 16), code[1], rtol=0, atol=1e-4)


def test_grids_of_odd_pictures() -> None:
    assert ConvStem(ConvStemConfig())(torch.randn(1, 3, 100, 70)).shape == (1, 256, 7, 5)
    assert PatchEmbed(3, 8, 16)(torch.randn(1, 3, 100, 70)).shape == (1, 8, 7, 5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"stem": STEM, "patch_size": 8}, "not both"),
        ({"groups": 2}, "anchors=true"),
        ({"anchors": True}, "auxiliary_loss=true"),
        ({"image_size": (64, 32)}, "image_size"),
    ],
)
def test_settings_that_contradict(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(af.ConfigError, match=says):
        af.build("detr-tiny", **settings)
