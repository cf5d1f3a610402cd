"""Files of clips, sets and tables as somebody hands them in: bytes, whose size is looked at before they are unpacked.

A clip is a zip of frames, an npz of frames, or a video file; a set is a CSV with an item in each line or an npz; a row
of a table is a line of a CSV under the names of its columns.
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

UNPACKED = 128 * 2**20  # bytes that a packed file may become
MOST_FRAMES = 600  # of a clip that are read
MOST_ITEMS = 2048  # of a set, which all look at one another
MOST_ROWS = 10_000
MOST_PIXELS = 4096 * 4096  # of a video's frame
FRAME_SIDE = 256  # pixels of a video's frames that are kept

GIVEN = "The file given"
CLIPS = ("x", "clips", "videos", "frames", "data")
SETS = ("x", "points", "items", "sets", "data")


def read_clip(content: bytes, row: int) -> tuple[Clip, int]:
    """The clip, and how many of them the file holds."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return _video(content), 1
    with _archive(content) as archive:
        names = archive.namelist()
        if names and all(name.endswith(".npy") for name in names):
            return _clip_of(_array(_arrays(content), CLIPS, "clips"), row)
        pictures = sorted(name for name in names if is_image(name))[:MOST_FRAMES]
        if not pictures:
            raise InputError("The zip holds no images; a clip is a zip of its frames, in the order of their names.")
        return Clip.of([read_member(archive, name, GIVEN) for name in pictures]), 1


def _clip_of(values: Any, row: int) -> tuple[Clip, int]:
    """[frames, rows, columns(, channels)] is one clip; with one more axis there are several."""
    coloured = values.ndim > 3 and values.shape[-1] in (1, 3)
    if values.ndim - int(coloured) not in (3, 4) or not values.size:
        raise InputError(
            f"The npz has the shape {list(values.shape)}; a clip is [frames, rows, columns] or with channels last."
        )
    several = values if values.ndim - int(coloured) == 4 else values[None]
    values = several[_which(row, len(several), "clips")]
    if values.dtype != np.uint8:
        raise InputError(f"The frames are {values.dtype}; they must be 8 bits (uint8), from 0 to 255.")
    return Clip.array(values[..., 0] if coloured and values.shape[-1] == 1 else values, "the clip given"), len(several)


def _video(content: bytes) -> Clip:
    """Through PyAV; frames are made small as they come, and those after the last that are read are left."""
    frames: list[Any] = []
    with reading(GIVEN), open_video(io.BytesIO(content), GIVEN) as container:
        size = container.streams.video[0].codec_context
        if size.width * size.height > MOST_PIXELS:
            raise InputError(f"The video has {size.width} x {size.height} pixels; the most is 4096 x 4096.")
        for frame in container.decode(video=0):
            scale = min(1.0, FRAME_SIDE / max(frame.width, frame.height))
            wide, high = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
            frames.append(frame.reformat(format="rgb24", width=wide, height=high).to_ndarray())
            if len(frames) == MOST_FRAMES:
                break
    if not frames:
        raise InputError("The video has no frames.")
    return Clip.array(np.stack(frames), "the clip given")


def read_set(content: bytes, row: int) -> tuple[Any, int]:
    """[items, numbers], and how many sets the file holds."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        held = _arrays(content)
        items = _array(held, SETS, "sets")
        if items.dtype.kind not in "fiu" or items.ndim not in (2, 3):
            raise InputError(
                f"x has the shape {list(items.shape)}; a set is [items, numbers], several [n, items, numbers]."
            )
        several = list(items) if items.ndim == 3 else [items]
        if "offsets" in held and items.ndim == 2:
            several = [items[a:b] for a, b in pairwise(ends_of(held["offsets"], len(items), GIVEN))]
        chosen, n = several[_which(row, len(several), "sets")], len(several)
    else:
        chosen, n = _numbers(_lines(content)), 1
    if len(chosen) > MOST_ITEMS:
        raise InputError(f"The set has {len(chosen):,} items; the most is {MOST_ITEMS:,}.")
    return chosen, n


def _numbers(lines: Sequence[Sequence[str]]) -> Any:
    """Lines of numbers; a first line of names is left out."""
    for start in (0, 1):
        try:
            return np.array([[float(value) for value in line] for line in lines[start:]], dtype=np.float32)
        except ValueError:
            continue
    raise InputError("The file is no set: each line must hold the numbers of one item, as many in every line.")


def read_row(content: bytes, row: int, columns: Sequence[str]) -> tuple[dict[str, Any], int]:
    """A line of a CSV, of which only the columns that the model knows are kept, and how many lines there are."""
    lines = _lines(content)
    names, rest = lines[0], lines[1:]
    if not set(names) & set(columns):
        raise InputError(
            f"The file's first line names {', '.join(names[:8])}; the model reads {', '.join(columns[:20])}."
        )
    if not rest:
        raise InputError("The file has the names of columns, and no row below them.")
    chosen = dict(zip(names, rest[_which(row, len(rest), "rows")], strict=False))
    return {name: value for name, value in chosen.items() if name in columns}, len(rest)


def _lines(content: bytes) -> list[list[str]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("The file is neither an npz nor a CSV in UTF-8.") from None
    separator = max("\t;,", key=text.partition("\n")[0].count)
    with reading(GIVEN):
        found = [line for line in csv.reader(io.StringIO(text), delimiter=separator) if any(line)]
    if not found:
        raise InputError("The file is empty.")
    return found[: MOST_ROWS + 1]


def _which(row: int, n: int, what: str) -> int:
    if not 0 <= row < n:
        raise InputError(f"The file holds {what} 0 to {n - 1}; {row} is none of them.")
    return row


def _archive(content: bytes) -> zipfile.ZipFile:
    with reading(GIVEN):
        archive = zipfile.ZipFile(io.BytesIO(content))
    size = sum(one.file_size for one in archive.infolist())
    if size > UNPACKED:
        raise InputError(f"The file would become {size >> 20:,} MB unpacked; the most is {UNPACKED >> 20} MB.")
    return archive


def _arrays(content: bytes) -> Arrays:
    _archive(content).close()
    return read_arrays(content, GIVEN)


def _array(held: Arrays, names: Sequence[str], what: str) -> Any:
    found = next((held[name] for name in names if name in held), None)
    if found is None:
        raise InputError(f"The npz holds {', '.join(held) or 'nothing'}; {what} are called {' or '.join(names)} there.")
    return found
