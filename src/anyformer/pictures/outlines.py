"""Objects as COCO writes them, polygons or runs of pixels, and the classes of pixels that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.errors import InputError


def fill(segment: Any, size: tuple[int, int]) -> NDArray[np.bool_]:
    """[rows, columns]: True inside. Polygons are lists of x, y, x, y, …; runs are {"size", "counts"}."""
    if isinstance(segment, Mapping):
        return runs(segment, size)
    if not isinstance(segment, Sequence) or isinstance(segment, str):
        raise InputError(f"its outline is {segment!r}, which is neither polygons nor runs of pixels.")
    return polygons(segment, size)


def polygons(parts: Sequence[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """A pixel is inside where its middle is inside one of the polygons."""
    inside = np.zeros(size, dtype=bool)
    for part in parts:
        if len(part) < 6 or len(part) % 2:
            raise InputError(f"its outline has {len(part)} numbers; a polygon is x, y of three corners or more.")
        inside |= _polygon(np.asarray(part, dtype=np.float64).reshape(-1, 2), size)
    return inside


def _polygon(corners: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """From left to right, each edge that is crossed changes outside to inside and back."""
    rows, columns = size
    middles = np.arange(rows)[:, None] + 0.5
    (x0, y0), (x1, y1) = corners.T, np.roll(corners, -1, axis=0).T
    crossed = (y0 <= middles) != (y1 <= middles)  # [rows, edges]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = x0 + (middles - y0) / (y1 - y0) * (x1 - x0)
    row, edge = np.nonzero(crossed)
    column = np.clip(np.ceil(at[row, edge] - 0.5), 0, columns).astype(int)
    turns = np.zeros((rows, columns + 1), dtype=np.int64)
    np.add.at(turns, (row, column), 1)
    odd: NDArray[np.bool_] = turns[:, :-1].cumsum(axis=1) % 2 == 1
    return odd


def runs(segment: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Lengths of runs, column by column, outside first."""
    counts = segment.get("counts")
    lengths = unpack(counts) if isinstance(counts, (str, bytes)) else list(counts or ())
    rows, columns = (int(n) for n in segment.get("size", size))
    if (rows, columns) != tuple(size) or sum(lengths) != rows * columns:
        raise InputError(
            f"its runs cover {sum(lengths)} pixels of {rows} x {columns}; the picture has {size[0]} x {size[1]}."
        )
    flat = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return flat.reshape(columns, rows).T


def unpack(text: str | bytes) -> list[int]:
    """COCO's short form: five bits a letter, the lowest first, and from the third run on what changed since the run
    before the last."""
    lengths: list[int] = []
    letters = iter(text if isinstance(text, bytes) else text.encode())
    for letter in letters:
        value, shift, bits = 0, 0, letter - 48
        while True:
            value |= (bits & 31) << shift
            shift += 5
            if not bits & 32:
                break
            bits = next(letters, 48) - 48
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
    return lengths


def classes(segments: Sequence[Any], numbers: Sequence[int], size: tuple[int, int], nothing: int = 0) -> Any:
    """[rows, columns]: the number of the object that each pixel is of; smaller objects lie on larger ones."""
    made = np.full(size, nothing, dtype=np.int32)
    filled = [(fill(segment, size), number) for segment, number in zip(segments, numbers, strict=True) if segment]
    for inside, number in sorted(filled, key=lambda pair: -int(pair[0].sum())):
        made[inside] = number
    return made
