"""Plots of attention for notebooks and papers. matplotlib is imported when the first plot is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.explorer.plot_arguments import check_arguments
from anyformer.explorer.plot_attention import heads as heads
from anyformer.explorer.plot_attention import overlay as overlay
from anyformer.explorer.plot_attention import rollout as rollout
from anyformer.explorer.plot_queries import query_boxes as query_boxes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER = "#1b2a41", "white"


def alignment(
    weights: Tensor,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    path: str | PathLike[str] | None = None,
    *,
    title: str = "Cross-attention",
) -> Figure:
    """Plot cross-attention as a heat map: one row per target token, one column per source token.

    `weights` is [target, source], or [heads, target, source], which is averaged over heads. The alignment returned by
    `generate` has one row per new token; leading `target_tokens` without a row (such as the start token) are ignored.
    With `path` the figure is also saved there (.png, .svg, .pdf).
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no global state, nothing to close

    check_arguments(path, weights=weights, source_tokens=source_tokens, target_tokens=target_tokens)
    grid = weights.detach().float().cpu()
    grid = grid.mean(dim=0) if grid.dim() == 3 else grid
    if grid.dim() == 2 and 0 < len(grid) < len(target_tokens):
        target_tokens = target_tokens[len(target_tokens) - len(grid) :]
    expected = (len(target_tokens), len(source_tokens))
    if grid.dim() != 2 or tuple(grid.shape) != expected:
        raise InputError(
            f"weights has shape {list(weights.shape)}; the tokens require {list(expected)} [target, source]."
        )
    figure = Figure(figsize=(2.6 + 0.5 * expected[1], 2.2 + 0.38 * expected[0]), layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot()
    image = axes.imshow(grid.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    _label(axes, source_tokens, target_tokens)
    _write_values(axes, grid)
    figure.suptitle(title, fontsize=13, color=INK)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, aspect=30)
    bar.set_label("attention weight", color=INK, labelpad=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=INK)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure


def temperature(
    scores: Tensor,
    labels: Sequence[str],
    temperatures: Sequence[float] = (0.2, 1.0, 5.0),
    path: str | PathLike[str] | None = None,
) -> Figure:
    """Plot softmax(scores / temperature) as bars, one panel per temperature, with the entropy in its title.

    `scores` has one value per label. With `path` the figure is also saved there.
    """
    from matplotlib.figure import Figure

    check_arguments(path, scores=scores, labels=labels, temperatures=temperatures)
    values = scores.detach().cpu().double()
    if tuple(values.shape) != (len(labels),) or not temperatures or min(temperatures) <= 0:
        raise InputError(
            f"scores has shape {list(values.shape)} for {len(labels)} labels, and temperatures is {list(temperatures)};"
            " expected one score per label and temperatures above 0."
        )
    figure = Figure(figsize=(2.6 * len(temperatures), 2.8), layout="constrained", facecolor=PAPER)
    panels = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    for axes, degree in zip(panels, temperatures, strict=True):
        logs = (values / degree).log_softmax(dim=-1)
        probabilities = logs.exp()
        entropy = float(-(probabilities * logs).nan_to_num(0.0).sum())
        axes.bar(range(len(labels)), probabilities.tolist(), color=INK)
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
        axes.set_title(f"temperature {degree:g}, entropy {entropy:.2f}", fontsize=10, color=INK)
        axes.set_ylim(0, 1)
    panels[0].set_ylabel("probability", color=INK)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure


def _label(axes: Any, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> None:
    slanted = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(source_tokens)), source_tokens, fontsize=11, **slanted)
    axes.set_yticks(range(len(target_tokens)), target_tokens, fontsize=11)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("source", color=INK, labelpad=8)
    axes.set_ylabel("target", color=INK, labelpad=8)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # White lines between the cells make rows and columns easier to follow.
    axes.set_xticks([i - 0.5 for i in range(1, len(source_tokens))], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(target_tokens))], minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=1.5)
    axes.tick_params(which="minor", length=0)


def _write_values(axes: Any, grid: Tensor) -> None:
    """Print weights of at least 0.1 into their cells."""
    for row, values in enumerate(grid.tolist()):
        for column, value in enumerate(values):
            if value >= 0.1:
                color = PAPER if value > 0.5 else INK
                axes.text(column, row, f"{value:.2f}".lstrip("0"), ha="center", va="center", fontsize=8, color=color)
