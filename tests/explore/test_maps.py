"""The pictures from Python: what is drawn is what was seen."""

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
    with pytest.raises(InputError, match="Nothing was seen"):
        af.plot.heads({})
    with pytest.raises(InputError, match="rows 0 to 1"):
        af.plot.heads(seen, row=2)
    with pytest.raises(InputError, match="3 tokens"):
        af.plot.rollout(seen, ["a", "b", "c"])
    with pytest.raises(InputError, match="all of one length"):
        af.plot.rollout({"a.weights": torch.ones(1, 1, 2, 2), "b.weights": torch.ones(1, 1, 2, 3)})
