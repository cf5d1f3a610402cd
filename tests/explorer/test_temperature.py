"""The image of a softmax at several temperatures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af

SCORES, LABELS = torch.tensor([2.0, 1.0, 0.0]), ["a", "b", "c"]


def test_bars_are_the_softmax_of_the_scores_over_the_temperature(tmp_path: Path) -> None:
    drawn = af.plot.temperature(SCORES, LABELS, (0.5, 4.0), tmp_path / "t.png")
    for axes, degree in zip(drawn.axes, (0.5, 4.0), strict=True):
        heights = torch.tensor([bar.get_height() for bar in axes.patches], dtype=SCORES.dtype)  # type: ignore[attr-defined]
        assert torch.allclose(heights, torch.softmax(SCORES / degree, -1), atol=1e-6)
        assert f"temperature {degree:g}" in axes.get_title()
    assert (tmp_path / "t.png").stat().st_size > 1000


@pytest.mark.parametrize("wrong", [(SCORES, ["a"], (1.0,)), (SCORES, LABELS, (0.0,)), (SCORES, LABELS, ())])
def test_what_makes_no_sense_is_refused(wrong: tuple[torch.Tensor, list[str], tuple[float, ...]]) -> None:
    with pytest.raises(af.Error, match="temperatures above 0"):
        af.plot.temperature(*wrong)
