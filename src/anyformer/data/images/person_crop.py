"""Crops of persons for ViTPose: the bounding box, enlarged by a quarter, with the aspect ratio of the model's input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.data.images.image_file import original_size
from anyformer.data.images.processor import ResizeTransform

WIDER = 1.25  # factor by which boxes are enlarged


def crop_region(box: Any, size: tuple[int, int]) -> NDArray[np.float32]:
    """The crop region (left, top, width, height) of a box (left, top, right, bottom), with the aspect ratio of `size`
    (rows, columns)."""
    left, top, right, bottom = (np.float32(value) for value in box)
    middle = np.array([left + (right - left) * 0.5, top + (bottom - top) * 0.5], dtype=np.float32)
    width, height, aspect = right - left, bottom - top, size[1] / size[0]
    if width > aspect * height:
        height = np.float32(width / aspect)
    else:
        width = np.float32(height * aspect)
    extent = np.array([width, height], dtype=np.float32) * np.float32(WIDER)
    return np.concatenate([middle - extent * 0.5, extent])


def crop_person(image: Any, box: Any, size: tuple[int, int]) -> tuple[NDArray[np.uint8], ResizeTransform]:
    """8-bit pixels [channels, rows, columns] of the crop, black outside the image. Corners are aligned (Huang et al.
    2020)."""
    left, top, width, height = (float(value) for value in crop_region(box, size))
    pixels = np.asarray(image)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    shown, stored = original_size(image), pixels.shape[:2]
    rows = _along(pixels, 0, top, height, size[0], stored[0] / shown[0])
    values = _along(rows, 1, left, width, size[1], stored[1] / shown[1])
    scale = ((size[0] - 1) / max(height, 1e-6), (size[1] - 1) / max(width, 1e-6))
    offset = (top * scale[0] - 0.5, left * scale[1] - 0.5)
    made = np.floor(values + 0.5).clip(0, 255).astype(np.uint8).transpose(2, 0, 1)
    return np.ascontiguousarray(made), ResizeTransform(scale, offset, size, shown)


def _along(pixels: Any, axis: int, start: float, extent: float, n: int, scale: float) -> Any:
    """`n` linear samples from start to start + extent along an axis; 0 outside the image."""
    at = (start + np.arange(n) * extent / max(n - 1, 1)) * scale
    last = pixels.shape[axis] - 1
    low = np.clip(np.floor(at), 0, last).astype(int)
    share = (at - low).reshape(-1, *[1] * (2 - axis))
    values = pixels.take(low, axis) * (1 - share) + pixels.take(np.minimum(low + 1, last), axis) * share
    inside = ((at >= 0) & (at <= last)).reshape(-1, *[1] * (2 - axis))
    return np.where(inside, values, 0.0)
