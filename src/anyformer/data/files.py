"""Data files: globs, compressed files, and bytes that need not fit into memory."""

from __future__ import annotations

import glob
import hashlib
import lzma
import mmap
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from anyformer.errors import ConfigError, DataError, Error
from anyformer.jsonfile import open_file

Buffer = bytes | mmap.mmap
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

BLOCK = 2**22
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
PACKED = (".gz", ".xz")


def check_paths(name: str, paths: Any) -> None:
    """Raise DataError unless `paths`, the argument `name`, is a path or a list of paths."""
    listed = isinstance(paths, (list, tuple))
    odd = [item for item in (paths if listed else [paths]) if not isinstance(item, (str, PathLike))]
    if odd:
        kind = type(odd[0]).__name__
        given = f"a {type(paths).__name__} that contains a {kind}" if listed else f"of type {kind}"
        raise DataError(
            f"{name} is {given}; it must be the path of a file or a list of paths."
            " Write rows that are in memory to a .jsonl file, one JSON object a line."
        )


def expand(paths: Paths) -> list[list[Path]]:
    """The files of each path given; a glob may match several.  "a.en,b*.de" -> [[a.en], [b1.de, b2.de]]"""
    items = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    if not items:
        raise DataError("No data file was given.")
    return [_matching(one) for item in items for one in _split(item)]


def named_files(paths: Paths) -> list[Path]:
    """The files among the paths given, without those in folders."""
    items = [paths] if isinstance(paths, (str, PathLike)) else paths
    found = [Path(part).expanduser() for item in items for part in _split(item)]
    return [file for path in found if not path.is_dir() for file in _matching(str(path))]


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
    hint = f" Did you mean {', '.join(near[:5])}?" if near else ""
    raise DataError(f"{path} does not exist.{hint}")


def data_suffix(path: Path) -> str:
    """The suffix of the content.  train.tsv.gz -> ".tsv" """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def file_fingerprint(path: Path) -> str:
    """A fingerprint that changes if the file is replaced or modified."""
    facts = path.stat()
    text = f"{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def reading(path: Path | str, error: type[DataError] = DataError) -> Iterator[None]:
    """Turn every exception while a file is read, those of decoders included, into one error that names the file."""
    try:
        yield
    except Error:
        raise
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as problem:
        raise error(f"{path} is damaged or cut short, and cannot be unpacked: {_why(problem)}.") from None
    except OSError as problem:
        damaged = type(problem).__name__ == "BadGzipFile"
        what = "is damaged or cut short, and cannot be unpacked" if damaged else "cannot be read"
        raise error(f"{path} {what}: {problem.strerror or _why(problem)}.") from None
    except MemoryError:
        raise error(f"{path} does not fit into memory.") from None
    except Exception as problem:  # damaged bytes make decoders fail in any way
        raise error(f"{path} is damaged, or is not what its name says: {_why(problem)}.") from problem


def _why(problem: Exception) -> str:
    return str(problem).strip().rstrip(".") or type(problem).__name__


def read_file(path: Path) -> bytes:
    with reading(path), open_file(path) as stream:
        return stream.read()


def map_file(path: Path) -> Buffer:
    with open_file(path) as stream:
        if not os.fstat(stream.fileno()).st_size:
            return b""
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def env_bytes(variable: str, default: int) -> int:
    """The number of bytes in an environment variable, such as 512MB."""
    value = os.environ.get(variable)
    if not value:
        return default
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B)?\s*", value, re.IGNORECASE)
    if found is None:
        raise ConfigError(f"{variable} is {value!r}; give a number of bytes, such as 500MB or 20GB.")
    return int(float(found[1]) * UNITS[(found[2] or "").upper()])
