"""Uploaded videos, sets and tables. Sizes are checked before files are unpacked.

A clip is a video file, or a zip or npz of frames. A set is an npz, or a CSV file with one item per line. A table is a
CSV file with a header line.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anyformer.data.arrays import Arrays, ends_of, read_arrays
from anyformer.data.files import reading
from anyformer.data.images.image_file import is_image
from anyformer.data.unpack import read_member
from anyformer.data.video.clips import Clip, open_video
from anyformer.errors import InputError

MAX_UNPACKED_BYTES = 128 * 2**20
MAX_FRAMES = 600  # further frames are ignored
MAX_ITEMS = 2048  # of a set
MAX_ROWS = 10_000
MAX_PIXELS = 4096 * 4096  # of a video frame
FRAME_SIDE = 256  # pixels; larger video frames are resized

FILE = "The uploaded file"
CLIPS = ("x", "clips", "videos", "frames", "data")
SETS = ("x", "points", "items", "sets", "data")


def read_clip(content: bytes, row: int) -> tuple[Clip, int]:
    """The clip at index `row`, and the number of clips in the file."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return _video(content), 1
    with _archive(content) as archive:
        names = archive.namelist()
        if names and all(name.endswith(".npy") for name in names):
            return _clip_of(_array(_arrays(content), CLIPS, "clips"), row)
        frames = sorted(name for name in names if is_image(name))[:MAX_FRAMES]
        if not frames:
            raise InputError("The zip contains no images; expected a zip of frames, sorted by name.")
        return Clip.of([read_member(archive, name, FILE) for name in frames]), 1


def _clip_of(values: Any, row: int) -> tuple[Clip, int]:
    """One clip [frames, height, width(, channels)], or several with another leading axis."""
    has_channels = values.ndim > 3 and values.shape[-1] in (1, 3)
    if values.ndim - int(has_channels) not in (3, 4) or not values.size:
        raise InputError(
            f"The npz has shape {list(values.shape)}; expected [frames, height, width] or"
            " [frames, height, width, channels]."
        )
    several = values if values.ndim - int(has_channels) == 4 else values[None]
    values = several[_which(row, len(several), "clips")]
    if values.dtype != np.uint8:
        raise InputError(f"The frames have dtype {values.dtype}; expected uint8.")
    return Clip.array(values[..., 0] if has_channels and values.shape[-1] == 1 else values, "the uploaded clip"), len(
        several
    )


def _video(content: bytes) -> Clip:
    """Decode a video with PyAV. Frames are resized while decoding; frames after MAX_FRAMES are ignored."""
    frames: list[Any] = []
    with reading(FILE), open_video(io.BytesIO(content), FILE) as container:
        size = container.streams.video[0].codec_context
        if size.width * size.height > MAX_PIXELS:
            raise InputError(f"The video has {size.width} x {size.height} pixels; the maximum is 4096 x 4096.")
        for frame in container.decode(video=0):
            scale = min(1.0, FRAME_SIDE / max(frame.width, frame.height))
            wide, high = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
            frames.append(frame.reformat(format="rgb24", width=wide, height=high).to_ndarray())
            if len(frames) == MAX_FRAMES:
                break
    if not frames:
        raise InputError("The video has no frames.")
    return Clip.array(np.stack(frames), "the uploaded clip")


def read_set(content: bytes, row: int) -> tuple[Any, int]:
    """The set [items, numbers] at index `row`, and the number of sets in the file."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        arrays = _arrays(content)
        items = _array(arrays, SETS, "sets")
        if items.dtype.kind not in "fiu" or items.ndim not in (2, 3):
            raise InputError(f"x has shape {list(items.shape)}; expected [items, numbers] or [sets, items, numbers].")
        several = list(items) if items.ndim == 3 else [items]
        if "offsets" in arrays and items.ndim == 2:
            several = [items[a:b] for a, b in pairwise(ends_of(arrays["offsets"], len(items), FILE))]
        chosen, n = several[_which(row, len(several), "sets")], len(several)
    else:
        chosen, n = _numbers(_lines(content)), 1
    if len(chosen) > MAX_ITEMS:
        raise InputError(f"The set has {len(chosen):,} items; the maximum is {MAX_ITEMS:,}.")
    return chosen, n


def _numbers(lines: Sequence[Sequence[str]]) -> Any:
    """Parse lines of numbers; a header line is skipped."""
    for start in (0, 1):
        try:
            return np.array([[float(value) for value in line] for line in lines[start:]], dtype=np.float32)
        except ValueError:
            continue
    raise InputError("The file is not a set; expected the numbers of one item per line, the same count in every line.")


def read_row(content: bytes, row: int, columns: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The table row at index `row` with the columns that the model reads, and the number of rows."""
    lines = _lines(content)
    names, rest = lines[0], lines[1:]
    if not set(names) & set(columns):
        raise InputError(
            f"The header of the file has {', '.join(names[:8])}; the model reads {', '.join(columns[:20])}."
        )
    if not rest:
        raise InputError("The file has a header but no rows.")
    chosen = dict(zip(names, rest[_which(row, len(rest), "rows")], strict=False))
    return {name: value for name, value in chosen.items() if name in columns}, len(rest)


def _lines(content: bytes) -> list[list[str]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("The file is neither an npz nor a CSV file in UTF-8.") from None
    separator = max("\t;,", key=text.partition("\n")[0].count)
    with reading(FILE):
        found = [line for line in csv.reader(io.StringIO(text), delimiter=separator) if any(line)]
    if not found:
        raise InputError("The file is empty.")
    return found[: MAX_ROWS + 1]


def _which(row: int, n: int, what: str) -> int:
    if not 0 <= row < n:
        raise InputError(f"row is {row}; the file contains {what} 0 to {n - 1}.")
    return row


def _archive(content: bytes) -> zipfile.ZipFile:
    with reading(FILE):
        archive = zipfile.ZipFile(io.BytesIO(content))
    size = sum(one.file_size for one in archive.infolist())
    if size > MAX_UNPACKED_BYTES:
        raise InputError(f"The file has {size >> 20:,} MB unpacked; the maximum is {MAX_UNPACKED_BYTES >> 20} MB.")
    return archive


def _arrays(content: bytes) -> Arrays:
    _archive(content).close()
    return read_arrays(content, FILE)


def _array(arrays: Arrays, names: Sequence[str], what: str) -> Any:
    found = next((arrays[name] for name in names if name in arrays), None)
    if found is None:
        raise InputError(
            f"The npz contains {', '.join(arrays) or 'no arrays'}; expected {what} with the name {' or '.join(names)}."
        )
    return found
