"""Files on disk, packed or not, globs among them, as bytes that need not fit into memory."""

from __future__ import annotations

import glob
import gzip
import hashlib
import lzma
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from anyformer.errors import DataError

Buffer = bytes | mmap.mmap
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

BLOCK = 2**22
IN_MEMORY = 2**25  # bytes that an unpacked file may have before it goes to the cache on disk
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


def cache_folder() -> Path:
    """ANYFORMER_CACHE, or the place that this system has for such things."""
    said = os.environ.get("ANYFORMER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(said) if said else base / "anyformer"


def expand(paths: Paths) -> list[list[Path]]:
    """The files of each path given; a glob may be several.  "a.en,b*.de" -> [[a.en], [b1.de, b2.de]]"""
    items = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    if not items:
        raise DataError("No data file was given.")
    return [_matching(one) for item in items for one in _split(item)]


def _split(item: str | PathLike[str]) -> list[str]:
    text = os.fspath(item)
    return [text] if Path(text).exists() else [part.strip() for part in text.split(",") if part.strip()]


def _matching(text: str) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the file of rows itself, or a glob such as {path / '*.tsv'}.")
    if path.exists():
        return [path]
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
    if found:
        return found
    if glob.has_magic(text):
        raise DataError(f"No file matches {text}.")
    near = sorted(other.name for other in path.parent.glob(f"{path.name.split('.')[0]}*")) if path.name else []
    hint = f" Beside it there is {', '.join(near[:5])}." if near else ""
    raise DataError(f"{path} does not exist.{hint}")


def kind_of(path: Path) -> str:
    """The suffix that says what is inside.  train.tsv.gz -> ".tsv" """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def stamp(path: Path) -> str:
    """Another one whenever the file is another or has changed."""
    facts = path.stat()
    text = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong with the file itself, as one sentence that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged or cut short, and cannot be unpacked: {error}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def content(path: Path, cache: Path) -> Buffer:
    """The bytes of a file, unpacked: mapped where they are many, so that they need not fit into memory."""
    unpack = PACKED.get(path.suffix.lower())
    with reading(path):
        if unpack is not None:
            return spool(_blocks(path), cache / f"{stamp(path)}.unpacked")
        return map_file(path)


def _blocks(path: Path) -> Iterator[bytes]:
    with reading(path), PACKED[path.suffix.lower()](path, "rb") as stream:
        while block := stream.read(BLOCK):
            yield block


def map_file(path: Path) -> Buffer:
    if not path.stat().st_size:
        return b""
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def spool(blocks: Iterable[bytes], place: Path) -> Buffer:
    """All blocks: in memory where they are few, else in a file at `place`, written once and mapped from then on."""
    if place.exists():
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


@contextmanager
def new_file(place: Path) -> Iterator[tempfile._TemporaryFileWrapper[bytes]]:
    """A file that stands at `place` once it is whole, and not at all before."""
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", delete=False) as stream:
            try:
                yield stream
                stream.flush()
                os.replace(stream.name, place)
            except BaseException:
                Path(stream.name).unlink(missing_ok=True)
                raise


@contextmanager
def writing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "Another folder for it can be given in the environment variable ANYFORMER_CACHE."
        raise DataError(f"The cache in {place.parent} cannot be written: {error.strerror or error}. {hint}") from None
