"""What is kept on disk for the next start: unpacked files, their indices, prepared rows.

A folder for each version of anyformer, since another version may prepare rows in another way. Together they hold at
most ANYFORMER_CACHE_SIZE (such as 50GB); what was not used for longest goes first, and nothing stays a month unused.
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

from anyformer.data.files import Buffer, bytes_said, map_file
from anyformer.errors import DataError
from anyformer.version import __version__

CEILING, CEILING_SAID = 20 * 10**9, "ANYFORMER_CACHE_SIZE"
IN_MEMORY = 2**25  # bytes that an unpacked file may have before it goes to the cache on disk
IN_USE, UNUSED = 3600.0, 30 * 86400.0  # seconds: what was used since may be in use; what was not for longer is removed
# What is written here; anything else in the folder is somebody else's.
OURS = re.compile(r"\.?[0-9a-f]{32}\.(unpacked|jsonl|examples|\d+\.lines\.(npy|digest))(\.\w+)*|\.examples(\.\w+)+")


def cache_folder() -> Path:
    """Of this version, in ANYFORMER_CACHE or in the place that this system has for such things."""
    said = os.environ.get("ANYFORMER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(said) if said else base / "anyformer") / __version__


def spool(blocks: Iterable[bytes], place: Path) -> Buffer:
    """All blocks: in memory where they are few, else in a file at `place`, written once and mapped from then on."""
    if used(place):
        return map_file(place)
    held: list[bytes] = []
    size = 0
    source = iter(blocks)
    for block in source:
        held.append(block)
        size += len(block)
        if size > IN_MEMORY:
            with new_file(place) as stream:
                stream.writelines(held)
                stream.writelines(source)
            return map_file(place)
    return b"".join(held)


def used(place: Path) -> bool:
    """Whether something is kept at a place; if so, it was used now."""
    with suppress(OSError):
        os.utime(place)
    return place.exists()


@contextmanager
def new_file(place: Path) -> Iterator[tempfile._TemporaryFileWrapper[bytes]]:
    """A file that stands at `place` once it is whole, and not at all before."""
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
    """Something new is kept at a place; afterwards, what is too much is removed."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        hint = "Another folder for it can be given in the environment variable ANYFORMER_CACHE."
        raise DataError(f"The cache in {place.parent} cannot be written: {error.strerror or error}. {hint}") from None
    tidy(place.parent)


def tidy(folder: Path) -> None:
    """Remove what was not used for a month, then what was not used for longest until the rest fits under the ceiling;
    never what was used within the hour. The folders of other versions count too."""
    homes = [folder, *_others(folder)]
    entries = sorted((entry for home in homes for entry in _entries(home)), key=lambda entry: entry[0])
    total, ceiling, now = sum(size for _, size, _ in entries), bytes_said(CEILING_SAID, CEILING), time.time()
    for last, size, path in entries:
        if now - last < IN_USE or (total <= ceiling and now - last < UNUSED):
            continue
        _remove(path)
        total -= size


def _remove(path: Path) -> None:
    """Out of sight first, so that nobody opens half of it."""
    gone = path.with_name(f".{path.name.lstrip('.')}.gone")
    with suppress(OSError):  # another process may be removing it too
        os.replace(path, gone)
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()


def _others(folder: Path) -> list[Path]:
    """The folders of other versions, and what was written before there were such folders."""
    if folder != cache_folder():
        return []
    versions = [path for path in _inside(folder.parent) if re.match(r"\d+\.", path.name) and path != folder]
    return [folder.parent, *versions]


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """When each thing that is kept was last used, and its bytes."""
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
