"""Geometry of patches: images and clips cut into patches and laid back, patches that were dropped, grids of cells."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.core.tokens import Tokens


def patchify(pixels: Tensor, size: tuple[int, ...], channels_last: bool = False) -> Tensor:
    """Cut images [B, C, H, W] into patches (rows, columns), or clips [B, T, C, H, W] into tubelets (frames, rows,
    columns): [B, patches, C·size], each in the order channel, frame, row, column, or channels last. A remainder at the
    right and bottom is cut off."""
    if pixels.dim() == 4:
        return patchify(pixels.unsqueeze(1), (1, *size), channels_last)
    frames, height, width = size
    rows, columns = pixels.shape[3] // height, pixels.shape[4] // width
    pixels = pixels[:, :, :, : rows * height, : columns * width]
    cut = pixels.unflatten(4, (columns, width)).unflatten(3, (rows, height)).unflatten(1, (-1, frames))
    # [B, t, frames, C, h, height, w, width]
    order = (0, 1, 4, 6, 2, 5, 7, 3) if channels_last else (0, 1, 4, 6, 3, 2, 5, 7)
    return cut.permute(*order).flatten(4).flatten(1, 3)


def unpatchify(patches: Tensor, grid: tuple[int, ...], size: tuple[int, ...]) -> Tensor:
    """Invert `patchify` for channels-last patches: [B, patches, size·C] -> [B, C, H, W], or [B, T, C, H, W] if `grid`
    counts frames, rows and columns."""
    if len(size) == 2:
        return unpatchify(patches, (1, *grid), (1, *size)).squeeze(1)
    apart = patches.unflatten(1, grid).unflatten(4, (*size, -1))  # [B, t, h, w, frames, height, width, C]
    return apart.permute(0, 1, 4, 7, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(1, 2)


def dropped(kept: Tokens, n: int) -> Tensor:
    """Which of `n` tokens are not among those whose `positions` were kept: [B, n]."""
    assert kept.positions is not None
    missing = torch.ones(kept.x.shape[0], n, dtype=torch.bool, device=kept.x.device)
    return missing.scatter(1, kept.positions.expand(len(missing), -1), False)


def as_image_grid(tokens: Tokens) -> Tensor:
    """Reshape [B, 1 + cells or cells, d] to [B, d, rows, columns], without the class token."""
    assert tokens.grid is not None
    rows, columns = tokens.grid
    x = tokens.pad().x[:, -rows * columns :]
    return x.transpose(1, 2).unflatten(2, (rows, columns))


def cell_centers(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """x and y of each cell's center, as fractions of the image: [cells, 2]."""
    cell = torch.arange(rows * columns, device=device)
    return torch.stack([(cell % columns + 0.5) / columns, (cell // columns + 0.5) / rows], dim=-1)
