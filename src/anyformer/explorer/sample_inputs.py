"""Generated sample inputs: a video, points, a table row, and images with objects. They are deterministic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.tasks.classify_set import TableReader

SIDE = 96  # pixels of an image
SCENES = 12  # number of images
SKY, GRASS = (156, 201, 240), (107, 160, 79)


def clip(frames: int = 16) -> NDArray[np.uint8]:
    """A video [frames, height, width, 3]: a ball bounces from left to right; a square does not move."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    made = []
    for i in range(frames):
        share = i / max(frames - 1, 1)
        pixels = _field()
        pixels[(abs(rows - 0.25 * SIDE) < 9) & (abs(columns - 0.8 * SIDE) < 9)] = (70, 60, 140)
        x, y = (0.1 + 0.8 * share) * SIDE, (0.72 - 0.42 * abs(math.sin(2.5 * math.pi * share))) * SIDE
        pixels[(rows - y) ** 2 + (columns - x) ** 2 < 11**2] = (214, 69, 44)
        made.append(pixels)
    return np.stack(made)


def points(numbers: int, n: int = 48) -> NDArray[np.float32]:
    """Points [n, numbers] with standard deviation about 1: two concentric rings in the first two features."""
    turn = np.arange(n) * 2.399963  # the golden angle spreads them evenly
    radius = np.where(np.arange(n) % 2, 1.7, 0.7)
    waves = [radius * np.cos(turn), radius * np.sin(turn), *(np.sin((k + 2) * turn) for k in range(numbers - 2))]
    return np.stack(waves[:numbers], axis=1).astype(np.float32)


def row(reader: TableReader) -> dict[str, Any]:
    """A table row: numbers near the mean, and the first value of each categorical column."""
    measured = zip(reader.numbers, reader.means, reader.stds, strict=True)
    made: dict[str, Any] = {
        name: round(mean + (0.5, -1.0)[i % 2] * std, 3) for i, (name, mean, std) in enumerate(measured)
    }
    return {**made, **{name: reader.values[name][0] for name in reader.categories if reader.values[name]}}


def scene(number: int) -> NDArray[np.uint8]:
    """An image [height, width, 3] with three objects of different sizes; positions depend on `number`."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    pixels = _field()
    for i in range(3):
        turn = 2.399963 * (3 * number + i + 1)
        x, y = (0.5 + 0.35 * math.cos(turn)) * SIDE, (0.5 + 0.35 * math.sin(1.3 * turn)) * SIDE
        wide, high = (0.05 + 0.09 * ((number + i) % 3)) * SIDE, (0.05 + 0.09 * ((2 * number + i) % 3)) * SIDE
        tint = [(214, 69, 44), (70, 60, 140), (240, 200, 60)][i]
        inside = ((rows - y) / high) ** 2 + ((columns - x) / wide) ** 2 < 1
        pixels[inside if i else (abs(rows - y) < high) & (abs(columns - x) < wide)] = tint
    return pixels


def _field() -> NDArray[np.uint8]:
    pixels = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    pixels[:] = SKY
    pixels[int(0.7 * SIDE) :] = GRASS
    return pixels
