"""Plots of attention weights recorded by `af.look`: all heads, rollout, and maps over an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.data.images.attention_maps import rollout as roll
from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.plot_arguments import check_arguments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER = "#1b2a41", "white"
ACROSS = 6  # images in a row
NAMED = 48  # maximum number of tokens with axis labels


def heads(
    seen: Mapping[str, Tensor],
    path: str | PathLike[str] | None = None,
    *,
    row: int = 0,
    title: str = "All heads: rows are queries, columns are keys",
) -> Figure:
    """Plot the attention matrix of every head, one row per layer, with its entropy in bits.

    `seen` is the result of `af.look(model, "*.self.weights")`; `row` is the batch index to plot. With `path` the figure
    is also saved there.
    """
    from matplotlib.figure import Figure  # without pyplot: no window, no global state, nothing to close

    check_arguments(path, seen=seen, row=row)
    layers = weights_of(seen, row)
    columns = max(len(weights) for weights in layers.values())
    size = (1.15 * columns + 1.6, 1.35 * len(layers) + 0.8)
    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    axes = figure.subplots(len(layers), columns, squeeze=False)
    for line, (point, weights) in zip(axes, layers.items(), strict=True):
        bits = downsample.entropy(weights).tolist()
        for head, panel in enumerate(line):
            _hide_ticks(panel)
            if head >= len(weights):
                panel.set_visible(False)
                continue
            panel.imshow(weights[head].numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
            panel.set_title(f"{head}: {bits[head]:.2f} bits", fontsize=7, color=INK, pad=2)
        name = point.removesuffix(".weights").replace(".blocks.", "\n")
        line[0].set_ylabel(name, fontsize=8, color=INK, rotation=0, ha="right", va="center")
    figure.suptitle(title, fontsize=11, color=INK)
    return _written(figure, path)


def rollout(
    seen: Mapping[str, Tensor],
    tokens: Sequence[str] | None = None,
    path: str | PathLike[str] | None = None,
    *,
    row: int = 0,
    raw: bool = False,
    title: str = "Attention rollout through all layers",
) -> Figure:
    """Plot attention rollout (Abnar and Zuidema 2020): one row per token of the last layer, one column per input token.

    `seen` is the result of `af.look(model, "encoder.blocks.*.self.weights")`. With `raw`, the residual connection is
    ignored. With `path` the figure is also saved there.
    """
    from matplotlib.figure import Figure

    check_arguments(path, seen=seen, tokens=tokens, row=row)
    layers = list(weights_of(seen, row).values())
    n = layers[0].shape[-1]
    if any(weights.shape[1:] != (n, n) for weights in layers):
        raise InputError(
            "Rollout needs the self-attention of a single stage with equal lengths; select these taps in af.look."
        )
    if tokens is not None and len(tokens) != n:
        raise InputError(f"tokens has {len(tokens)} names; the weights have {n} tokens.")
    total = roll([weights[None] for weights in layers], raw)[0]
    side = min(max(0.3 * n, 3.0), 14.0)
    figure = Figure(figsize=(side + 1.6, side + 1.2), layout="constrained", facecolor=PAPER)
    axes = figure.add_subplot()
    image = axes.imshow(total.numpy(), cmap="Blues", vmin=0.0, aspect="auto")
    if tokens is not None and n <= NAMED:
        axes.set_xticks(range(n), tokens, fontsize=9, rotation=60, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(n), tokens, fontsize=9)
        axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02).outline.set_visible(False)
    figure.suptitle(title, fontsize=12, color=INK)
    return _written(figure, path)


def overlay(
    maps: Tensor,
    image: Any,
    path: str | PathLike[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "Attention",
) -> Figure:
    """Plot attention maps over an image: one map [rows, columns] or several [n, rows, columns], for example one per
    head, query or token. Regions with low attention are darkened.

    `image` is a file, an array or a PIL image; `names` are the titles of the maps. With `path` the figure is also saved
    there.
    """
    from matplotlib.figure import Figure

    from anyformer.data.images.image_file import ImageFile

    check_arguments(path, maps=maps, names=names)
    every = maps.detach().float().cpu()
    every = every.unsqueeze(0) if every.dim() == 2 else every
    if every.dim() != 3 or 0 in every.shape:
        raise InputError(f"maps has shape {list(maps.shape)}; expected [rows, columns] or [n, rows, columns].")
    if names is not None and len(names) != len(every):
        raise InputError(f"names has {len(names)} entries for {len(every)} maps.")
    opened = ImageFile.of(image).open()
    columns = min(len(every), ACROSS)
    rows = -(-len(every) // columns)
    figure = Figure(figsize=(1.9 * columns + 0.4, 2.1 * rows + 0.6), layout="constrained", facecolor=PAPER)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in axes[len(every) :]:
        panel.set_visible(False)
    for i, (panel, one) in enumerate(zip(axes, every, strict=False)):
        _hide_ticks(panel)
        panel.imshow(opened, extent=(0, opened.width, opened.height, 0))
        dark = torch.zeros(*one.shape, 4)
        dark[..., 3] = 0.88 * (1 - one / one.max().clamp(min=1e-12))
        panel.imshow(dark.numpy(), extent=(0, opened.width, opened.height, 0), interpolation="nearest")
        name = names[i] if names is not None else f"head {i}" if len(every) > 1 else ""
        panel.set_title(f"{name} max {one.max():.3f}".strip(), fontsize=8, color=INK, pad=2)
    figure.suptitle(title, fontsize=12, color=INK)
    return _written(figure, path)


def weights_of(seen: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """The recorded attention weights [heads, queries, keys] of one batch row."""
    found = {point: value for point, value in seen.items() if point.endswith(".weights")}
    if not found:
        raise InputError('No attention weights were recorded; run the model under af.look(model, "*.weights").')
    batch = min(len(value) for value in found.values())
    if not -batch <= row < batch:
        raise InputError(f"row is {row}; expected 0 to {batch - 1}.")
    return {point: torch.as_tensor(value[row].detach().float().cpu()) for point, value in found.items()}


def _hide_ticks(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color="#b8c0cc", linewidth=0.6)


def _written(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure
