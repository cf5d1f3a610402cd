"""The images from Python: what is drawn is what was seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.core.taps import Seen
from anyformer.errors import InputError


@pytest.fixture(scope="module")
def seen() -> Seen:
    torch.manual_seed(0)
    model = af.build("bert-tiny").eval()
    with torch.no_grad(), af.look(model, "*.self.weights") as seen:
        model(input_ids=torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]))
    return seen


def test_every_head_has_its_matrix(seen: Seen, tmp_path: Path) -> None:
    figure = af.plot.heads(seen, tmp_path / "new" / "heads.svg", row=1)
    assert (tmp_path / "new" / "heads.svg").stat().st_size > 1000
    n_heads = next(iter(seen.values())).shape[1]
    drawn = [axes.images[0].get_array() for axes in figure.axes]
    assert len(drawn) == 2 * n_heads
    for layer, point in enumerate(seen):
        for head in range(n_heads):
            np.testing.assert_allclose(drawn[layer * n_heads + head], seen[point][1, head], rtol=1e-6)
    title = figure.axes[0].get_title()
    weights = next(iter(seen.values()))[1, 0].double()
    assert title == f"0: {-(weights * weights.log2()).sum(-1).mean():.2f} bits"


def test_rollout_draws_the_product(seen: Seen) -> None:
    figure = af.plot.rollout(seen, ["a", "b", "c", "d"])
    total = np.eye(4)
    for weights in seen.values():
        total = (0.5 * weights[0].double().mean(0).numpy() + 0.5 * np.eye(4)) @ total
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), total, rtol=1e-5)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "c", "d"]


def test_mistakes(seen: Seen) -> None:
    with pytest.raises(InputError, match="No attention weights"):
        af.plot.heads({})
    with pytest.raises(InputError, match="expected 0 to 1"):
        af.plot.heads(seen, row=2)
    with pytest.raises(InputError, match="has 3 names"):
        af.plot.rollout(seen, ["a", "b", "c"])
    with pytest.raises(InputError, match="equal lengths"):
        af.plot.rollout({"a.weights": torch.ones(1, 1, 2, 2), "b.weights": torch.ones(1, 1, 2, 3)})


def test_maps_over_an_image(tmp_path: Path) -> None:
    """Each map is stretched over the whole image, and clear exactly where it is largest."""
    pytest.importorskip("PIL", reason="images take Pillow")
    maps = torch.rand(3, 4, 5)
    figure = af.plot.overlay(maps, np.zeros((40, 60, 3), dtype=np.uint8), tmp_path / "over.png", names=["a", "b", "c"])
    assert (tmp_path / "over.png").read_bytes().startswith(b"\x89PNG")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 3 and shown[1].get_title() == f"b max {maps[1].max():.3f}"
    picture, dark = shown[1].images
    assert picture.get_extent() == dark.get_extent() == [0, 60, 40, 0]
    assert dark.get_array()[..., 3].argmin() == maps[1].argmax()
    with pytest.raises(InputError, match="2 entries"):
        af.plot.overlay(maps, np.zeros((4, 4, 3), dtype=np.uint8), names=["a", "b"])
    with pytest.raises(InputError, match="rows, columns"):
        af.plot.overlay(maps[0, 0], np.zeros((4, 4, 3), dtype=np.uint8))
