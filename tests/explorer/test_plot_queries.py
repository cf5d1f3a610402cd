"""The figure of object queries: a square for each, dots where the boxes are, colors that tell their size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.explorer.plot_queries import size_colors


def test_colors_tell_small_wide_and_tall() -> None:
    small, lying, standing = size_colors(torch.tensor([[0.05, 0.04], [0.9, 0.6], [0.4, 0.9]])).tolist()
    assert max(small) == small[1]  # green
    assert max(lying) == lying[0] and max(standing) == standing[2]


def test_a_square_for_each_query(tmp_path: Path) -> None:
    boxes = torch.rand(30, 12, 4)
    figure = af.plot.query_boxes(boxes, tmp_path / "made" / "queries.png")
    assert (tmp_path / "made" / "queries.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 12
    dots = figure.axes[7].collections[0].get_offsets()
    torch.testing.assert_close(torch.tensor(dots.tolist()).float(), boxes[:, 7, :2])
    few = af.plot.query_boxes(boxes, n=4).axes
    assert [axes.get_title() for axes in few] == [str(i * boxes.shape[1] // 4) for i in range(4)]
    with pytest.raises(af.InputError, match="boxes"):
        af.plot.query_boxes(boxes[0])
