"""Rows of audio from folders, zips, tables and files: `audio` is an Audio, the other columns are those of the table.

read_audio("birds/")                       # a folder (or zip) of class folders: audio, label
read_audio("train.tsv")                    # a table (TSV, CSV, JSON lines) with names of audio files in its folder
read_audio("train.tsv,train_wav.zip")      # the same, with the audio files in a zip
read_audio("talks/*.flac")                 # audio files without labels
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from anyformer.data.archives import SPLITS, Archive, beside
from anyformer.data.audio.audio_file import SUFFIXES, Audio, audio_from_file
from anyformer.data.images.read import ImageRows, JoinedImageRows
from anyformer.data.images.read import expand as expand_paths
from anyformer.data.rows import Rows, read
from anyformer.data.tables.formats import SUFFIXES as TABLES
from anyformer.data.tables.formats import Row
from anyformer.data.unpack import read_member
from anyformer.errors import DataError, UnreadableError

AUDIO_COLUMNS = ("audio", "sound", "file", "file_name", "filename", "path", "wav", "clip", "file_path")


def is_audio(name: str) -> bool:
    path = Path(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and "__MACOSX" not in path.parts


class AudioArchive(Archive):
    """A folder or a zip with audio files."""

    @cached_property
    def names(self) -> list[str]:
        return sorted(name for name in self.files if is_audio(name))

    def find_audio(self, name: str) -> Audio | None:
        if self.archive is None:
            path = self.path / name
            return audio_from_file(path) if os.path.isfile(path) else None
        if name in self.archive.NameToInfo:
            return self.audio(name)
        end = self._by_end.get(name.rpartition("/")[2])
        return self.audio(end) if end is not None and end.endswith(name.lstrip("./")) else None

    def audio(self, name: str) -> Audio:
        archive = self.archive
        if archive is None:
            return audio_from_file(self.path / name)
        return Audio(f"{self.path}: {name}", lambda: read_member(archive, name, str(self.path), UnreadableError))


def read_audio(
    paths: Any,
    *,
    format: str | None = None,
    header: bool | None = None,
    names: Iterable[str] = (),
    audio: str | None = None,
) -> Rows:
    """Return the rows of files, folders, zips or tables. `audio` is the column of a table that names the audio files
    (default: detected automatically)."""
    found = expand_paths(paths)
    lists = [path for path in found if path.is_file() and _kind(path) in TABLES]
    sources = [path for path in found if path.is_dir() or path.suffix.lower() == ".zip"]
    if lists:
        parts: list[Rows] = [_table(path, sources, format, header, [*names, *AUDIO_COLUMNS], audio) for path in lists]
    else:
        parts = [_place(AudioArchive(path)) for path in sources]
    alone = [path for path in found if path.is_file() and is_audio(str(path))]
    parts += [_files(alone)] if alone else []
    odd = [path for path in found if path not in (*lists, *sources, *alone)]
    if odd or not parts:
        raise DataError(
            f"{(odd or found)[0]} is neither an audio file ({', '.join(SUFFIXES)}) nor a table, folder or zip of them."
        )
    return parts[0] if len(parts) == 1 else JoinedImageRows(parts)


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in (".gz", ".xz")]
    return suffixes[-1] if suffixes else ""


def _place(place: AudioArchive) -> Rows:
    """Rows of a folder or zip, with its folders as labels if it has any."""
    names = place.names
    if place.folders and place.folders <= SPLITS:
        some = sorted(place.folders)[0]
        raise DataError(
            f"{place.path} holds {', '.join(sorted(place.folders))}: give one of them, {place.path / some}."
        )
    if not names:
        raise DataError(f"{place.path} has no audio files ({', '.join(SUFFIXES)}).")
    depth = 0
    while len({name.split("/")[depth] for name in names if name.count("/") > depth}) == 1:
        depth += 1  # a single folder around all others is not a class
    inside = [name for name in names if name.count("/") > depth]
    if not inside:
        return _listed(place, names, [{"audio": place.audio(name)} for name in names])
    rows = [{"audio": place.audio(name), "label": name.split("/")[depth]} for name in inside]
    return _listed(place, inside, rows)


def _listed(place: AudioArchive, names: Sequence[str], rows: Sequence[Row]) -> Rows:
    labels = sorted({row["label"] for row in rows if "label" in row})
    about = {"labels": labels} if labels else {}
    return ImageRows(
        str(place.path), len(rows), lambda i: rows[i], lambda i: f"{place.path}, {names[i]}", place.digest, about
    )


def _files(paths: Sequence[Path]) -> Rows:
    facts = "\n".join(f"{path.name}|{path.stat().st_size}" for path in paths)
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return ImageRows(name, len(paths), lambda i: {"audio": audio_from_file(paths[i])}, lambda i: str(paths[i]), facts)


def _table(
    path: Path,
    sources: Sequence[Path],
    format: str | None,
    header: bool | None,
    names: Sequence[str],
    audio: str | None,
) -> Rows:
    """Rows of a table, with Audio in place of file names. A file that is missing is an error."""
    rows = read(path, format=format, header=header, names=names)
    column = audio if audio is not None else _column(rows)
    rows.require_column(column)
    searched = [AudioArchive(one) for one in (sources or beside(path))]

    def make(i: int) -> Row:
        row = dict(rows.row(i))
        named = row.pop(column)
        found = next((one for place in searched if (one := place.find_audio(str(named))) is not None), None)
        if found is None:
            looked = ", ".join(str(place.path) for place in searched)
            raise DataError(f'{rows.location(i)}, names the audio file "{named}", which is not in {looked}.')
        return {"audio": found, **row}

    for i in range(len(rows)):
        make(i)
    digest = rows.fingerprint + "|".join(place.digest for place in searched if place.archive is not None)
    return ImageRows(rows.path, len(rows), make, rows.location, digest, rows.metadata)


def _column(rows: Rows) -> str:
    lower = {name.lower(): name for name in rows.columns}
    named = [lower[name] for name in AUDIO_COLUMNS if name in lower]
    looks = [name for name, value in rows[0].items() if isinstance(value, str) and is_audio(value)]
    if not named and not looks:
        raise DataError(
            f"{rows.path} has no column of audio files (looked for {', '.join(AUDIO_COLUMNS)}); it has:"
            f' {", ".join(rows.columns)}. Name it: data.columns="audio=NAME".'
        )
    return (named or looks)[0]
