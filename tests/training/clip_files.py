"""Clips for tests, made by formula: a bright square that goes right or down."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

FRAMES, SIDE = 6, 32


def clip(way: str, start: int = 4, bright: int = 200) -> NDArray[np.uint8]:
    """[frames, rows, columns, channels]"""
    frames = np.full((FRAMES, SIDE, SIDE, 3), 20, dtype=np.uint8)
    for i in range(FRAMES):
        moved = start + 3 * i
        rows, columns = (slice(start, start + 8), slice(moved, moved + 8))
        frames[(i, rows, columns) if way == "right" else (i, columns, rows)] = bright
    return frames


def npz(n: int = 16) -> bytes:
    ways = ["right" if i % 2 else "down" for i in range(n)]
    packed = io.BytesIO()
    np.savez(packed, x=np.stack([clip(way, 2 + i % 4, 150 + 5 * i) for i, way in enumerate(ways)]), y=np.array(ways))
    return packed.getvalue()
