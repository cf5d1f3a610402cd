"""Folders and zips with images, and the search for an image by its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from anyformer.data.images.image_file import ImageFile, is_image
from anyformer.data.unpack import open_zip
from anyformer.errors import DataError

SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "dev"))


class Archive:
    """A folder or a zip. `names` are the relative paths of its images, sorted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive = None if path.is_dir() else open_zip(path)

    @cached_property
    def names(self) -> list[str]:
        return sorted(name for name in self.files if is_image(name))

    @cached_property
    def files(self) -> list[str]:
        if self.archive is not None:
            return [info.filename for info in self.archive.infolist() if not info.is_dir()]
        found, seen = [], {_identity(self.path)}
        for folder, folders, names in os.walk(self.path, followlinks=True):
            below = sorted(name for name in folders if not name.startswith("."))
            folders[:] = [name for name in below if _first_time(Path(folder, name), seen)]
            inside = Path(folder).relative_to(self.path)
            found += [(inside / name).as_posix() for name in names]
        return found

    @cached_property
    def folders(self) -> set[str]:
        """Names of the top-level folders."""
        if self.archive is not None:
            return {name.split("/")[0] for name in self.archive.namelist() if "/" in name and "__MACOSX" not in name}
        return {path.name for path in self.path.iterdir() if path.is_dir() and not path.name.startswith(".")}

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the images: names with their checksums (zip) or sizes (folder)."""
        if self.archive is not None:
            facts: Iterable[str] = (f"{info.filename}|{info.CRC}" for info in self.archive.infolist())
        else:
            facts = (f"{name}|{_size(self.path / name)}" for name in self.names)
        return hashlib.blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()

    @cached_property
    def _by_end(self) -> dict[str, str]:
        """Members of a zip by file name, for tables that leave the folder out."""
        assert self.archive is not None
        return {name.rpartition("/")[2]: name for name in reversed(self.files)}

    def find(self, name: str) -> ImageFile | None:
        if self.archive is None:
            path = self.path / name
            return ImageFile.file(path) if os.path.isfile(path) else None
        if name in self.archive.NameToInfo:
            return ImageFile.member(self.archive, name)
        end = self._by_end.get(name.rpartition("/")[2])
        return ImageFile.member(self.archive, end) if end is not None and end.endswith(name.lstrip("./")) else None

    def image(self, name: str) -> ImageFile:
        if self.archive is None:
            return ImageFile.file(self.path / name)
        return ImageFile.member(self.archive, name)


def _size(path: Path) -> int:
    """Size in bytes; -1 for a broken link, which is an error when it is opened."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _identity(folder: Path) -> tuple[int, int]:
    facts = folder.stat()
    return facts.st_dev, facts.st_ino


def _first_time(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether a folder was not visited yet: links may form a cycle."""
    try:
        identity = _identity(folder)
    except OSError:
        return False
    new = identity not in seen
    seen.add(identity)
    return new


class FileFinder:
    """Finds the images that a table names: in the given places, or else in the table's folder or its zips."""

    def __init__(self, source: Path, places: Sequence[Path] = ()) -> None:
        self.source = source
        self.places = [Archive(path) for path in (places or beside(source))]

    def find(self, name: str, where: str) -> ImageFile:
        path = Path(name)
        if path.is_absolute() and os.path.isfile(path):
            return ImageFile.file(path)
        for place in self.places:
            found = place.find(name)
            if found is not None:
                return found
        looked = ", ".join(str(place.path) for place in self.places)
        raise DataError(f'{where}, names the image "{name}", which is not in {looked}.')

    @property
    def digest(self) -> str:
        """A fingerprint of the zips. Files in folders are found by name."""
        return "|".join(place.digest for place in self.places if place.archive is not None)


def beside(source: Path) -> list[Path]:
    """The folder of a table, its subfolder "images", and its zips, those named like the table first.
    train.json -> train_images.zip"""
    home = source.parent
    first = source.name.split(".")[0].split("_")[0]
    zips = sorted(home.glob("*.zip"), key=lambda path: (not path.name.startswith(first), path.name))
    return [home, *(path for path in (home / "images", home / first) if path.is_dir()), *zips]
