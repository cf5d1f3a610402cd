"""Clips as users have them, as rows: `clip` is a Clip, and the label what is said of it.

read_clips("sports/")               # class folders, of folders of frames or of video files
read_clips("clips.npz")             # x [n, frames, rows, columns, channels] and y
read_clips("train.tsv")             # a table that names folders of frames or video files beside it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.formats import SUFFIXES as TABLES
from anyformer.data.formats import Row
from anyformer.data.read import Rows, read
from anyformer.errors import ConfigError, DataError, InputError
from anyformer.pictures.open import Array, Picture, is_picture
from anyformer.pictures.read import Joined, PictureRows
from anyformer.pictures.read import expand as expand_paths

VIDEOS = frozenset(".mp4 .mkv .avi .mov .webm .mpg .mpeg .m4v .gif".split())
CLIP_COLUMNS = ("clip", "video", "file", "file_name", "filename", "path", "folder", "frames")


class Clip:
    """Pictures that follow one another; `take(n)` opens so many of them, evenly spread over the whole."""

    def __init__(self, name: str, frames: Callable[[int], list[Any]]) -> None:
        self.name, self._frames = name, frames

    def __repr__(self) -> str:
        return f"Clip({self.name})"

    def take(self, n: int) -> list[Any]:
        """PIL images in RGB; a clip of fewer frames repeats some."""
        return [Picture.of(frame, self.name).open() for frame in self._frames(n)]

    @classmethod
    def folder(cls, path: Path) -> Clip:
        def frames(n: int) -> list[Picture]:
            names = sorted(one for one in path.iterdir() if is_picture(one)) if path.is_dir() else []
            if not names:
                raise DataError(f"{path} has no frames: a clip is a folder of pictures, or a video file.")
            return [Picture.file(names[i]) for i in spread(len(names), n)]

        return cls(str(path), frames)

    @classmethod
    def array(cls, values: Any, name: str) -> Clip:
        """[frames, rows, columns] or with channels last."""

        def frames(n: int) -> list[Any]:
            if values.ndim not in (3, 4) or not len(values):
                raise DataError(f"{name} has no frames: it has the shape {list(values.shape)}.")
            return [values[i] for i in spread(len(values), n)]

        return cls(name, frames)

    @classmethod
    def file(cls, path: Path) -> Clip:
        return cls(str(path), lambda n: decode(path, n))

    @classmethod
    def of(cls, thing: Any) -> Clip:
        """A folder of frames, a video file, an array, or a list of pictures."""
        if isinstance(thing, Clip):
            return thing
        if isinstance(thing, (str, Path)):
            return cls.folder(Path(thing)) if Path(thing).is_dir() else cls.file(Path(thing))
        if isinstance(thing, (list, tuple)):
            pictures = list(thing)
            if not pictures:
                raise InputError("A clip needs at least one frame; an empty list was given.")
            return cls("the frames given", lambda n: [pictures[i] for i in spread(len(pictures), n)])
        return cls.array(np.asarray(thing), "the clip given")


def spread(have: int, want: int) -> list[int]:
    """The middles of `want` equal stretches.  spread(8, 4) -> [1, 3, 5, 7]"""
    return [int((i + 0.5) * have / want) for i in range(want)]


def decode(path: Path, n: int) -> list[Array]:
    """So many frames of a video file, through PyAV."""
    if not path.is_file():
        raise DataError(f"There is no clip {path}.")
    try:
        import av
    except ImportError:
        raise ConfigError(
            f"{path} is a video file, which takes PyAV to open: pip install 'anyformer[video]'."
        ) from None
    try:
        with av.open(str(path)) as container:
            frames: list[Any] = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise DataError(f"{path} is damaged, or no video at all: {error}.") from None
    if not frames:
        raise DataError(f"{path} is a video without frames.")
    return [frames[i] for i in spread(len(frames), n)]


def read_clips(
    paths: Any,
    *,
    format: str | None = None,
    header: bool | None = None,
    names: Iterable[str] = (),
    clip: str | None = None,
) -> Rows:
    """Rows of whatever is given; `clip` is the column that names clips, where it has an unusual name."""
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
            raise DataError(f"{path} is neither a clip, nor a folder, npz or list of clips.")
    return parts[0] if len(parts) == 1 else Joined(parts)


def _listed(path: Path, rows: Sequence[Row], names: Sequence[str]) -> Rows:
    labels = sorted({row["label"] for row in rows if "label" in row})
    about = {"labels": labels} if labels else {}
    return PictureRows(str(path), len(rows), lambda i: rows[i], lambda i: names[i], "\n".join(names), about)


def _folders(path: Path) -> Rows:
    """Class folders; a folder of frames by itself is one clip."""
    if any(is_picture(one) for one in path.iterdir()):
        return _listed(path, [{"clip": Clip.folder(path)}], [str(path)])
    rows, names = [], []
    for home in sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")):
        found = [one for one in sorted(home.iterdir()) if one.is_dir() or one.suffix.lower() in VIDEOS]
        if not found:
            raise DataError(f"The class folder {home} has no clips: folders of frames, or video files.")
        rows += [{"clip": Clip.of(one), "label": home.name} for one in found]
        names += [str(one) for one in found]
    if not rows:
        raise DataError(f"{path} has no clips.")
    return _listed(path, rows, names)


def _arrays(path: Path) -> Rows:
    try:
        with np.load(path, allow_pickle=False) as stored:
            held = {name.lower(): stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not an npz of arrays: {error}.") from None
    clips = next((held[name] for name in ("x", "clips", "videos", "frames", "data") if name in held), None)
    labels = next((held[name] for name in ("y", "labels", "label") if name in held), None)
    if clips is None or clips.ndim not in (4, 5):
        has = ", ".join(f"{name} {list(value.shape)}" for name, value in held.items())
        raise DataError(f"{path} has no clips: it needs x [n, frames, rows, columns(, channels)]; it has {has}.")
    if not clips.shape[1]:
        raise DataError(f"{path} has clips without frames: x has the shape {list(clips.shape)}.")
    if labels is not None and len(labels) != len(clips):
        raise DataError(f"{path} has {len(clips):,} clips and {len(labels):,} labels.")
    classes = held.get("classes")
    names = [f"{path}, clip {i + 1}" for i in range(len(clips))]
    rows: list[Row] = [{"clip": Clip.array(clip, name)} for clip, name in zip(clips, names, strict=True)]
    if labels is not None:
        for row, label in zip(rows, labels.reshape(len(clips)), strict=True):
            row["label"] = str(label if classes is None else classes[int(label)])
    return _listed(path, rows, names)


def _table(rows: Rows, path: Path, clip: str | None) -> Rows:
    lower = {name.lower(): name for name in rows.columns}
    column = clip if clip is not None else next((lower[name] for name in CLIP_COLUMNS if name in lower), None)
    if column is None:
        raise DataError(
            f"{rows.path} has no column that names clips (looked for {', '.join(CLIP_COLUMNS)}); it has:"
            f' {", ".join(rows.columns)}. Say which it is: data.columns="clip=NAME".'
        )
    rows.need(column)
    made, names = [], []
    for i, row in enumerate(rows):
        named = path.parent / str(row[column])
        if not named.exists():
            raise DataError(f'{rows.where(i)}, names the clip "{row[column]}", which is not in {path.parent}.')
        rest = {name: value for name, value in row.items() if name != column}
        made.append({"clip": Clip.of(named), **rest})
        names.append(rows.where(i))
    return _listed(path, made, names)
