"""The cache on disk: unpacked files, their line indices, prepared rows.

Each version of anyformer has its own folder. Together they hold at most ANYFORMER_CACHE_SIZE (such as 50GB): the least
recently used entries are removed first, and entries unused for a month are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anyformer.data.files import Buffer, env_bytes, map_file
from anyformer.errors import DataError
from anyformer.version import __version__

CEILING, CEILING_VARIABLE = 20 * 10**9, "ANYFORMER_CACHE_SIZE"
IN_MEMORY = 2**25  # bytes; larger unpacked files go to the cache on disk
IN_USE, UNUSED = (
    3600.0,
    30 * 86400.0,
)  # seconds: entries used within IN_USE are kept; entries unused for UNUSED are removed
# Names of the entries written here; everything else in the folder is left alone.
OURS = re.compile(r"\.?[0-9a-f]{32}\.(unpacked|jsonl|examples|\d+\.lines\.(npy|digest))(\.\w+)*|\.examples(\.\w+)+")


def cache_folder() -> Path:
    """The folder of this version, in ANYFORMER_CACHE or the user's cache folder."""
    folder = os.environ.get("ANYFORMER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(folder) if folder else base / "anyformer") / __version__


def spool(blocks: Iterable[bytes], place: Path) -> Buffer:
    """All blocks: in memory if they are few, else in a memory-mapped file at `place`, which is written once."""
    if used(place):
        return map_file(place)
    kept: list[bytes] = []
    size = 0
    source = iter(blocks)
    for block in source:
        kept.append(block)
        size += len(block)
        if size > IN_MEMORY:
            with new_file(place) as stream:
                stream.writelines(kept)
                stream.writelines(source)
            return map_file(place)
    return b"".join(kept)


def used(place: Path) -> bool:
    """Whether an entry exists; if so, mark it as used now."""
    with suppress(OSError):
        os.utime(place)
    return place.exists()


@contextmanager
def new_file(place: Path) -> Iterator[tempfile._TemporaryFileWrapper[bytes]]:
    """A file that appears at `place` only when it is complete."""
    home, prefix = place.parent, f".{place.name}."
    with writing(place), tempfile.NamedTemporaryFile(dir=home, prefix=prefix, delete=False) as stream:
        try:
            yield stream
            stream.flush()
            os.replace(stream.name, place)
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Write an entry of the cache, then remove old entries if the cache is too large."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        hint = "Set another folder in the environment variable ANYFORMER_CACHE."
        raise DataError(f"The cache in {place.parent} cannot be written: {error.strerror or error}. {hint}") from None
    tidy(place.parent)


def tidy(folder: Path) -> None:
    """Remove entries unused for a month, then the least recently used ones until the rest fits the limit. Entries used
    within the hour are kept. The folders of other versions count too."""
    homes = [folder, *_others(folder)]
    entries = sorted((entry for home in homes for entry in _entries(home)), key=lambda entry: entry[0])
    total, ceiling, now = sum(size for _, size, _ in entries), env_bytes(CEILING_VARIABLE, CEILING), time.time()
    for last, size, path in entries:
        if now - last < IN_USE or (total <= ceiling and now - last < UNUSED):
            continue
        _remove(path)
        total -= size


def _remove(path: Path) -> None:
    """Rename before removing, so that no process opens a half-removed entry."""
    gone = path.with_name(f".{path.name.lstrip('.')}.gone")
    with suppress(OSError):  # another process may be removing it too
        os.replace(path, gone)
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()


def _others(folder: Path) -> list[Path]:
    """The folders of other versions, and entries of versions before there were such folders."""
    if folder != cache_folder():
        return []
    versions = [path for path in _inside(folder.parent) if re.match(r"\d+\.", path.name) and path != folder]
    return [folder.parent, *versions]


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """The time of last use and the bytes of each entry."""
    found = []
    for path in _inside(folder):
        if OURS.fullmatch(path.name):
            with suppress(OSError):  # another process may tidy too
                sizes = [one.stat().st_size for one in _inside(path)] if path.is_dir() else [path.stat().st_size]
                found.append((path.stat().st_mtime, sum(sizes), path))
    return found


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
