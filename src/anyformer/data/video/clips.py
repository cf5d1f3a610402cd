"""Rows of video clips from folders, tables and arrays: `clip` is a Clip.

read_clips("sports/")               # class folders, with folders of frames or video files
read_clips("clips.npz")             # x [n, frames, rows, columns, channels] and y
read_clips("train.tsv")             # a table that names folders of frames or video files
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from anyformer.data.archives import Archive
from anyformer.data.arrays import labels_of, read_arrays
from anyformer.data.files import reading
from anyformer.data.images.image_file import Array, ImageFile, is_image, most_pixels, too_large
from anyformer.data.images.read import ImageRows, JoinedImageRows
from anyformer.data.images.read import expand as expand_paths
from anyformer.data.rows import Rows, read
from anyformer.data.tables.formats import SUFFIXES as TABLES
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, DataError, InputError, UnreadableError
from anyformer.jsonfile import open_file

VIDEOS = frozenset(".mp4 .mkv .avi .mov .webm .mpg .mpeg .m4v .gif".split())
CLIP_COLUMNS = ("clip", "video", "file", "file_name", "filename", "path", "folder", "frames")


class Clip:
    """A sequence of frames; `take(n)` opens `n` of them, evenly spaced. `path` is None unless the clip is a video file
    or a folder of frames of its own."""

    def __init__(self, name: str, frames: Callable[[int], list[Any]], path: Path | None = None) -> None:
        self.name, self._frames, self.path = name, frames, path

    def __repr__(self) -> str:
        return f"Clip({self.name})"

    def take(self, n: int) -> list[Any]:
        """Frames as PIL images in RGB; frames of shorter clips are repeated."""
        return [ImageFile.of(frame, self.name).open() for frame in self._frames(n)]

    @classmethod
    def folder(cls, path: Path) -> Clip:
        def frames(n: int) -> list[ImageFile]:
            names = sorted(one for one in path.iterdir() if is_image(one)) if path.is_dir() else []
            if not names:
                raise UnreadableError(f"{path} has no frames; a clip must be a folder of images or a video file.")
            return [ImageFile.file(names[i]) for i in evenly_spaced(len(names), n)]

        return cls(str(path), frames, path)

    @classmethod
    def array(cls, values: Any, name: str) -> Clip:
        """A clip from an array [frames, rows, columns] or [frames, rows, columns, channels]."""

        def frames(n: int) -> list[Any]:
            if values.ndim not in (3, 4) or not len(values):
                raise UnreadableError(f"{name} has no frames: its shape is {list(values.shape)}.")
            return [values[i] for i in evenly_spaced(len(values), n)]

        return cls(name, frames)

    @classmethod
    def file(cls, path: Path) -> Clip:
        return cls(str(path), lambda n: decode(path, n), path)

    @classmethod
    def of(cls, inputs: Any) -> Clip:
        """A clip from a folder of frames, a video file, an array, or a list of images."""
        if isinstance(inputs, Clip):
            return inputs
        if isinstance(inputs, (str, Path)):
            return cls.folder(Path(inputs)) if Path(inputs).is_dir() else cls.file(Path(inputs))
        if isinstance(inputs, (list, tuple)):
            frames = list(inputs)
            if not frames:
                raise InputError("The list of frames is empty; a clip needs one frame or more.")
            return cls("the frames given", lambda n: [frames[i] for i in evenly_spaced(len(frames), n)])
        return cls.array(np.asarray(inputs), "the clip given")


def evenly_spaced(have: int, want: int) -> list[int]:
    """The centers of `want` equal intervals.  evenly_spaced(8, 4) -> [1, 3, 5, 7]"""
    return [int((i + 0.5) * have / want) for i in range(want)]


def decode(path: Path, n: int) -> list[Array]:
    """Decode `n` evenly spaced frames of a video file with PyAV."""
    if not path.is_file():
        raise UnreadableError(f"{path} does not exist.")
    with reading(path, UnreadableError), open_file(path) as stream:
        with open_video(stream, str(path)) as container:
            count = sum(packet.size > 0 for packet in container.demux(video=0))
        while True:  # again if some packets were not frames
            stream.seek(0)
            frames, found = _frames(stream, str(path), evenly_spaced(count, n))
            if not found:
                raise UnreadableError(f"{path} has no frames.")
            if found == count:
                return frames
            count = found


def _frames(stream: BinaryIO, name: str, indices: Sequence[int]) -> tuple[list[Array], int]:
    """The frames with the given numbers, and the number of all frames; only those are kept in memory."""
    kept: dict[int, Array] = {}
    found = 0
    with open_video(stream, name) as container:
        for frame in container.decode(video=0):
            if found in indices:
                kept[found] = frame.to_ndarray(format="rgb24")
            found += 1
    return [kept[i] for i in indices if i in kept], found


@contextmanager
def open_video(stream: BinaryIO, name: str) -> Iterator[Any]:
    """Open a video with PyAV. Playlist formats, which reference other files or URLs, are refused."""
    try:
        import av
    except ImportError:
        raise ConfigError(f"{name} is a video file, which needs PyAV: pip install 'anyformer[video]'.") from None
    try:
        with av.open(stream, "r", options={"protocol_whitelist": "none"}) as container:
            tracks = container.streams.video
            if not tracks:
                raise UnreadableError(f"{name} has no video stream.")
            wide, high = tracks[0].codec_context.width, tracks[0].codec_context.height
            if wide * high > most_pixels():
                raise too_large(name, (wide, high))
            yield container
    except av.FFmpegError as error:
        raise UnreadableError(f"{name} cannot be decoded as a video: {error.strerror}.") from None


def read_clips(
    paths: Any,
    *,
    format: str | None = None,
    header: bool | None = None,
    names: Iterable[str] = (),
    clip: str | None = None,
) -> Rows:
    """Return the rows of folders, tables or arrays. `clip` is the column that names the clips (default: detected
    automatically)."""
    parts: list[Rows] = []
    for path in expand_paths(paths):
        suffix = path.suffix.lower()
        if path.is_dir():
            parts.append(_folders(path))
        elif suffix == ".npz":
            parts.append(_arrays(path))
        elif suffix in TABLES:
            parts.append(_table(read(path, format=format, header=header, names=[*names, *CLIP_COLUMNS]), path, clip))
        elif suffix in VIDEOS:
            parts.append(_listed(path, [{"clip": Clip.file(path)}], [str(path)]))
        else:
            raise DataError(f"{path} is neither a clip nor a folder, npz or table of clips.")
    return parts[0] if len(parts) == 1 else JoinedImageRows(parts)


def _listed(path: Path, rows: Sequence[Row], names: Sequence[str], digest: str = "") -> Rows:
    labels = sorted({row["label"] for row in rows if "label" in row})
    about = {"labels": labels} if labels else {}
    return ImageRows(str(path), len(rows), lambda i: rows[i], lambda i: names[i], "\n".join([*names, digest]), about)


def _folders(path: Path) -> Rows:
    """Rows of class folders; a folder of frames is one clip."""
    if any(is_image(one) for one in path.iterdir()):
        return _listed(path, [{"clip": Clip.folder(path)}], [str(path)])
    rows, names = [], []
    for home in sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")):
        found = [one for one in sorted(home.iterdir()) if one.is_dir() or one.suffix.lower() in VIDEOS]
        if not found:
            raise DataError(f"The class folder {home} has no clips (folders of frames or video files).")
        rows += [{"clip": Clip.of(one), "label": home.name} for one in found]
        names += [str(one) for one in found]
    if not rows:
        raise DataError(f"{path} has no clips.")
    return _listed(path, rows, names)


def _arrays(path: Path) -> Rows:
    arrays = read_arrays(path)
    clips = next((arrays[name] for name in ("x", "clips", "videos", "frames", "data") if name in arrays), None)
    if clips is None or clips.ndim not in (4, 5):
        has = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
        raise DataError(f"{path} has no clips; it needs x [n, frames, rows, columns(, channels)]; it has {has}.")
    if not clips.shape[1]:
        raise DataError(f"{path} has clips without frames: x has shape {list(clips.shape)}.")
    labels = labels_of(arrays, len(clips), "clips", path)
    names = [f"{path}, clip {i + 1}" for i in range(len(clips))]
    rows: list[Row] = [{"clip": Clip.array(clip, name)} for clip, name in zip(clips, names, strict=True)]
    if labels is not None:
        for row, label in zip(rows, labels, strict=True):
            row["label"] = label
    return _listed(path, rows, names, Archive(path).digest)


def _table(rows: Rows, path: Path, clip: str | None) -> Rows:
    lower = {name.lower(): name for name in rows.columns}
    column = clip if clip is not None else next((lower[name] for name in CLIP_COLUMNS if name in lower), None)
    if column is None:
        raise DataError(
            f"{rows.path} has no column of clips (looked for {', '.join(CLIP_COLUMNS)}); it has:"
            f' {", ".join(rows.columns)}. Name it: data.columns="clip=NAME".'
        )
    rows.require_column(column)
    made: list[Row] = []
    for i, row in enumerate(rows):
        named = path.parent / str(row[column])
        if not os.path.exists(named):  # False for an invalid path
            raise DataError(f'{rows.location(i)}, names the clip "{row[column]}", which is not in {path.parent}.')
        rest = {name: value for name, value in row.items() if name != column}
        made.append({"clip": Clip.of(named), **rest})
    facts = "\n".join(one["clip"].name for one in made) + rows.fingerprint
    return ImageRows(str(path), len(made), lambda i: made[i], rows.location, facts, rows.metadata)
