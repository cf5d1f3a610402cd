"""Safe reading of files in model folders.

    read_json(folder / "config.json")           # an object, a list, …
    read_object(folder / "config.json")         # a dict, or an error
    parse_json(content, "config.json")          # the same of bytes that were read before

A folder may come from anywhere. A file is refused, in one sentence, unless it is a regular file inside its folder, of a
bounded size, and valid JSON that is not nested too deeply. Integers past 64 bits are read as floats, so that no later
conversion overflows (tokenizer_config.json says `"model_max_length": 1000000000000000019884624838656`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from anyformer.errors import Error, FolderError

MAX_BYTES = 256 * 2**20  # the largest tokenizer.json in use has about 40 MB
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # two of them by each other are a whole character
MAX_DEPTH = 64  # of lists and objects inside one another


def read_json(
    path: Path, *, folder: Path | None = None, limit: int = MAX_BYTES, error: type[Error] = FolderError
) -> Any:
    """The content of a JSON file. `folder` is where the file must lie, after links (default: the path's own folder)."""
    return parse_json(read_bytes(path, folder=folder, limit=limit, error=error), str(path), error=error)


def read_object(
    path: Path, *, folder: Path | None = None, limit: int = MAX_BYTES, error: type[Error] = FolderError
) -> dict[str, Any]:
    """As read_json, of a file that must hold a JSON object."""
    return as_object(read_json(path, folder=folder, limit=limit, error=error), str(path), error=error)


def parse_json(content: bytes | str, name: str, *, error: type[Error] = FolderError) -> Any:
    """The value of JSON text; `name` is what an error calls it."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")  # some editors write a byte mark
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise error(_too_deep(name)) from None
    except json.JSONDecodeError as problem:
        where = f"{name}, line {problem.lineno},"
        raise error(f"{where} is not valid JSON: {problem.msg} at column {problem.colno}.") from None
    except UnicodeDecodeError as problem:
        raise error(f"{name} is not UTF-8 text: {problem.reason} at byte {problem.start}.") from None
    if _deeper(value, MAX_DEPTH):
        raise error(_too_deep(name))
    if _HALF.search(text) and not _encodes(value):
        raise error(f"{name} contains a lone surrogate, which is not valid Unicode.")
    return value


def parse_object(content: bytes | str, name: str, *, error: type[Error] = FolderError) -> dict[str, Any]:
    """As parse_json, of text that must hold a JSON object."""
    return as_object(parse_json(content, name, error=error), name, error=error)


def as_object(value: Any, name: str, *, error: type[Error] = FolderError) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise error(f"{name} must hold a JSON object; it holds {_kind(value)}.")
    return value


def read_bytes(
    path: Path, *, folder: Path | None = None, limit: int = MAX_BYTES, error: type[Error] = FolderError
) -> bytes:
    """The bytes of a regular file of at most `limit` bytes that lies in `folder`. Never waits for a pipe."""
    check_inside(path, folder, error=error)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(limit + 1) if size <= limit else b""
    except (OSError, ValueError) as problem:
        raise error(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None
    if size > limit or len(content) > limit:
        raise error(f"{path} has more than {limit:,} bytes, the maximum for such a file.")
    return content


def open_file(path: Path) -> BinaryIO:
    """A regular file as a stream. A pipe or a device is an OSError: it might be waited for, or read, for ever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def check_inside(path: Path, folder: Path | None = None, *, error: type[Error] = FolderError) -> None:
    """An error where a path, after links, leads out of `folder` (default: the path's own folder).

    The download cache of huggingface_hub keeps each snapshot as links to ../../blobs, which are allowed.
    """
    folder = path.parent if folder is None else folder
    try:
        home, target = folder.resolve(), path.resolve()
    except (OSError, RuntimeError, ValueError) as problem:  # a circle of links; a null character
        raise error(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else None
    if not target.is_relative_to(home) and (blobs is None or not target.is_relative_to(blobs)):
        raise error(f"{path} leads out of its folder {folder}; put the file itself there.")


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(text: str) -> int | float:
    value = int(text) if len(text) <= 20 else float(text)
    return value if -(2**63) <= value < 2**63 else float(value)


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and objects lie more than `most` levels inside one another."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(most):
        inner = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in inner if isinstance(item, (dict, list))]
    return bool(level)


def _too_deep(name: str) -> str:
    return f"{name} is nested more than {MAX_DEPTH} levels deep."


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")
