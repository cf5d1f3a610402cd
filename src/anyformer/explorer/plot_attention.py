"""What `af.look` has seen, as images: every head at a glance, and attention through all layers."""

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
NAMED = 48  # tokens up to which an image names them


def heads(
    seen: Mapping[str, Tensor],
    path: str | PathLike[str] | None = None,
    *,
    row: int = 0,
    title: str = "Every head: rows are queries, columns keys",
) -> Figure:
    """A small matrix for each head that was seen, a line for each layer, with its entropy in bits.

    `seen` is what `af.look(model, "*.self.weights")` gives; `row` is the one of the batch that is drawn. With `path`
    the image is written there; the figure comes back either way.
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
        for head, place in enumerate(line):
            _bare(place)
            if head >= len(weights):
                place.set_visible(False)
                continue
            place.imshow(weights[head].numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
            place.set_title(f"{head}: {bits[head]:.2f} bits", fontsize=7, color=INK, pad=2)
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
    title: str = "What each token is made of, through all layers",
) -> Figure:
    """Attention rollout (Abnar and Zuidema 2020) of the layers that were seen: a line for each token of the last layer,
    dark where it comes from.

    `seen` is what `af.look(model, "encoder.blocks.*.self.weights")` gives; `raw` leaves out what stays in place by the
    residual. With `path` the image is written there.
    """
    from matplotlib.figure import Figure

    check_arguments(path, seen=seen, tokens=tokens, row=row)
    layers = list(weights_of(seen, row).values())
    n = layers[0].shape[-1]
    if any(weights.shape[1:] != (n, n) for weights in layers):
        raise InputError("Rollout wants the self-attention of one stage, all of one length; look at those alone.")
    if tokens is not None and len(tokens) != n:
        raise InputError(f"There are {len(tokens)} tokens, and the weights are of {n}.")
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
    picture: Any,
    path: str | PathLike[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "Where it looks",
) -> Figure:
    """Attention laid over an image: [rows, columns], or one such map for each head, query or word, [n, rows, columns];
    clear where much is looked at, dark elsewhere.

    `picture` is a file, an array or a PIL image; `names` say what each map is of. With `path` it is written there.
    """
    from matplotlib.figure import Figure

    from anyformer.data.images.image_file import ImageFile

    check_arguments(path, maps=maps, names=names)
    every = maps.detach().float().cpu()
    every = every.unsqueeze(0) if every.dim() == 2 else every
    if every.dim() != 3 or 0 in every.shape:
        raise InputError(f"maps have shape {list(maps.shape)}; they must be [rows, columns] or [n, rows, columns].")
    if names is not None and len(names) != len(every):
        raise InputError(f"There are {len(names)} names, and {len(every)} maps.")
    image = ImageFile.of(picture).open()
    columns = min(len(every), ACROSS)
    rows = -(-len(every) // columns)
    figure = Figure(figsize=(1.9 * columns + 0.4, 2.1 * rows + 0.6), layout="constrained", facecolor=PAPER)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for place in axes[len(every) :]:
        place.set_visible(False)
    for i, (place, one) in enumerate(zip(axes, every, strict=False)):
        _bare(place)
        place.imshow(image, extent=(0, image.width, image.height, 0))
        dark = torch.zeros(*one.shape, 4)
        dark[..., 3] = 0.88 * (1 - one / one.max().clamp(min=1e-12))
        place.imshow(dark.numpy(), extent=(0, image.width, image.height, 0), interpolation="nearest")
        name = names[i] if names is not None else f"head {i}" if len(every) > 1 else ""
        place.set_title(f"{name} most {one.max():.3f}".strip(), fontsize=8, color=INK, pad=2)
    figure.suptitle(title, fontsize=12, color=INK)
    return _written(figure, path)


def weights_of(seen: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """The weights among what was seen, [heads, queries, keys] of one row of the batch."""
    found = {point: value for point, value in seen.items() if point.endswith(".weights")}
    if not found:
        raise InputError('Nothing was seen of attention weights; look at "*.weights" while the model runs.')
    batch = min(len(value) for value in found.values())
    if not -batch <= row < batch:
        raise InputError(f"The batch has rows 0 to {batch - 1}; {row} is none of them.")
    return {point: torch.as_tensor(value[row].detach().float().cpu()) for point, value in found.items()}


def _bare(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(color="#b8c0cc", linewidth=0.6)


def _written(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return figure
