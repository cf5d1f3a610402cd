"""Plot where each query of a detector places its boxes over a data set (Carion et al. 2020, figure 7)."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.explorer.plot_arguments import check_arguments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER = "#1b2a41", "white"
SMALL, LARGE = 0.1, 0.5  # fraction of the image side: green up to SMALL, red or blue from LARGE
GREEN, RED, BLUE = (0.13, 0.65, 0.27), (0.86, 0.15, 0.15), (0.13, 0.33, 0.86)
COLUMNS = 10


def query_boxes(
    boxes: Tensor, path: str | PathLike[str] | None = None, *, n: int | None = None, title: str | None = None
) -> Figure:
    """Draw a square for each object query with a dot for each image, at the center of the box that the query predicts.

    Small boxes are green, large wide ones red, large tall ones blue. `boxes` is [images, queries, 4] (center x, center
    y, width, height in 0…1), as `pred_boxes` of many images. `n` draws only that many queries, evenly from all. With
    `path` the figure is also written there.
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no global state, nothing to close

    check_arguments(path, boxes=boxes, n=n)
    if boxes.dim() != 3 or boxes.shape[-1] != 4 or 0 in boxes.shape:
        raise InputError(f"boxes have shape {list(boxes.shape)}; they must be [images, queries, 4].")
    images, queries = boxes.shape[:2]
    shown = queries if n is None else min(n, queries)
    chosen = [i * queries // shown for i in range(shown)]
    places = boxes.detach().float().cpu()[:, chosen]
    columns = min(COLUMNS, shown)
    rows = math.ceil(shown / columns)
    figure = Figure(figsize=(1.1 * columns + 0.3, 1.1 * rows + 1.0), facecolor=PAPER, layout="constrained")
    dot = min(max(1500 / images, 0.6), 12)
    for query in range(shown):
        axes = figure.add_subplot(rows, columns, query + 1)
        x, y = places[:, query, 0], places[:, query, 1]
        axes.scatter(x.numpy(), y.numpy(), s=dot, c=size_colors(places[:, query, 2:]).numpy(), linewidths=0, alpha=0.7)
        axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[], aspect="equal")
        axes.set_title(str(chosen[query]), fontsize=7, color=INK, pad=2)
        for spine in axes.spines.values():
            spine.set(color="#b8c0cc", linewidth=0.6)
    usual = f"Where each query places its boxes: {shown} queries, {images:,} images"
    figure.suptitle(title if title is not None else usual, fontsize=11, color=INK)
    figure.supxlabel("green: small   red: large and wide   blue: large and tall", fontsize=9, color=INK)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure


def size_colors(sizes: Tensor) -> Tensor:
    """RGB colors [n, 3] for widths and heights [n, 2] in 0…1."""
    width, height = sizes.unbind(-1)
    large = (((width * height).sqrt() - SMALL) / (LARGE - SMALL)).clamp(0, 1).unsqueeze(-1)
    wide = (width > height).unsqueeze(-1)
    green, red, blue = (torch.tensor(one) for one in (GREEN, RED, BLUE))
    return green * (1 - large) + torch.where(wide, red, blue) * large
