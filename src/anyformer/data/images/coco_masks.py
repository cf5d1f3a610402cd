"""COCO segmentations as masks: polygons, and run-length encodings (lists or strings). Equal to pycocotools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.errors import DataError

Mask = NDArray[np.bool_]
FINER = 5  # subpixels along an edge of a polygon
FAR = 1e9  # pixels; coordinates are clipped to this


def decode_mask(segment: Any, height: int, width: int) -> Mask:
    """[height, width]: True inside polygons [[x, y, x, y, …], …] or run lengths {"counts", "size"}."""
    if segment is None or (isinstance(segment, Sequence) and not len(segment)):
        return np.zeros((height, width), dtype=bool)
    if isinstance(segment, Mapping):
        return _from_runs(segment, height, width)
    if not isinstance(segment, Sequence) or isinstance(segment, str):
        raise DataError(f"a segmentation is {type(segment).__name__}; it must be polygons or run lengths.")
    polygons = segment if isinstance(segment[0], Sequence) else [segment]
    mask = np.zeros((height, width), dtype=bool)
    for polygon in polygons:
        mask |= fill_polygon(polygon, height, width)
    return mask


def semantic_mask(
    segments: Sequence[Any], kinds: Sequence[int], height: int, width: int, nothing: int = 0
) -> NDArray[np.int64]:
    """One class for each pixel; smaller segmentations lie on top of larger ones."""
    canvas = np.full((height, width), nothing, dtype=np.int64)
    masks = []
    for i, segment in enumerate(segments):
        try:
            masks.append(decode_mask(segment, height, width))
        except DataError as error:
            raise DataError(f"object {i + 1}: {error}") from None
    for i in sorted(range(len(masks)), key=lambda i: -int(masks[i].sum())):
        canvas[masks[i]] = kinds[i]
    return canvas


def fill_polygon(polygon: Any, height: int, width: int) -> Mask:
    """The inside of one polygon [x, y, x, y, …]. Its edge is rasterized on a finer grid; the sign of inside and outside
    changes where it crosses the center of a pixel column."""
    try:
        corners = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError):
        corners = np.full((1, 2), np.nan)
    if not np.isfinite(corners).all():
        raise DataError("a polygon must be a list of numbers x, y, x, y, ….")
    corners = _near(corners, height, width)
    if not len(corners):
        return np.zeros((height, width), dtype=bool)
    across, down = _edge((FINER * corners + 0.5).astype(np.int64))
    turns = np.flatnonzero(np.diff(across))
    before, then = across[turns], across[turns + 1]
    column = (np.where(then < before, then, then - 1) + 0.5) / FINER - 0.5
    row = (np.minimum(down[turns], down[turns + 1]) + 0.5) / FINER - 0.5
    here = (np.floor(column) == column) & (column >= 0) & (column <= width - 1)
    pixels = column[here].astype(np.int64) * height + np.ceil(row[here].clip(0, height)).astype(np.int64)
    crossed = np.bincount(pixels, minlength=height * width + 1)[: height * width]
    return (np.cumsum(crossed) % 2 == 1).reshape(width, height).T


def _near(corners: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Clip a polygon to one image size around the image (Sutherland, Hodgman 1974), so that the number of points on its
    edges is bounded."""
    corners = corners.clip(-FAR, FAR)
    for axis, size in ((0, width), (1, height)):
        for sign, limit in ((1, 2 * size), (-1, size)):
            over = sign * corners[:, axis] - limit
            if not (over > 0).any():
                continue
            kept = []
            for i in range(len(corners)):
                here, then = over[i - 1], over[i]
                if (here > 0) != (then > 0):
                    kept.append(corners[i - 1] + (corners[i] - corners[i - 1]) * here / (here - then))
                if then <= 0:
                    kept.append(corners[i])
            corners = np.array(kept).reshape(-1, 2)
    return corners


def _edge(corners: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every point of the finer grid along the edge."""
    xs, ys = [], []
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        dx, dy = np.abs(end - start)
        flat = dx >= dy
        backwards = start[0] > end[0] if flat else start[1] > end[1]
        first, last = (end, start) if backwards else (start, end)
        steps = np.arange(max(dx, dy) + 1)
        steps = steps[::-1] if backwards else steps
        slope = ((last[1] - first[1]) if flat else (last[0] - first[0])) / max(dx, dy, 1)
        other = ((first[1] if flat else first[0]) + slope * steps + 0.5).astype(np.int64)
        xs.append(steps + first[0] if flat else other)
        ys.append(other if flat else steps + first[1])
    return np.concatenate(xs), np.concatenate(ys)


def _from_runs(runs: Mapping[str, Any], height: int, width: int) -> Mask:
    try:
        counts, (rows, columns) = runs["counts"], runs["size"]
    except (KeyError, TypeError, ValueError):
        raise DataError('run lengths need "counts" and "size" (rows, columns).') from None
    try:
        counts = decode_rle(counts) if isinstance(counts, (str, bytes)) else [int(count) for count in counts]
    except (TypeError, ValueError, OverflowError, IndexError):
        raise DataError('"counts" of run lengths must be a list of integers or a string in COCO\'s encoding.') from None
    if (rows, columns) != (height, width):
        raise DataError(f'run lengths have "size" {rows} x {columns}; the image has {height} x {width}.')
    if min(counts, default=0) < 0:
        raise DataError(f"run lengths contain {min(counts):,}; they must be 0 or more.")
    if sum(counts) != rows * columns:
        raise DataError(f"run lengths add up to {sum(counts):,}; the image has {rows * columns:,} pixels.")
    inside = np.arange(len(counts)) % 2 == 1
    return np.repeat(inside, counts).reshape(columns, rows).T


def decode_rle(text: str | bytes) -> list[int]:
    """Decode COCO's string of run lengths: 5 bits per character, lowest first, differences to the run before the
    last."""
    data = text.encode("ascii") if isinstance(text, str) else text
    counts: list[int] = []
    i = 0
    while i < len(data):
        value, shift, more = 0, 0, True
        while more:
            bits = data[i] - 48
            value |= (bits & 31) << shift
            more = bool(bits & 32)
            i, shift = i + 1, shift + 5
            if not more and bits & 16:
                value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
    return counts
