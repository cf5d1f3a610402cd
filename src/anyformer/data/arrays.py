"""Arrays in npz files: labels and offsets."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.files import reading
from anyformer.data.unpack import check_unpacked, read_member
from anyformer.errors import DataError
from anyformer.jsonfile import open_file

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
LABELS, CLASSES = ("y", "labels", "label", "targets"), ("classes", "label_names")

Arrays = Mapping[str, Any]


def read_arrays(source: Path | bytes, name: str = "") -> Arrays:
    """The arrays of an npz by lower-case name: numbers, booleans and strings. Pickled objects are refused."""
    where = name or str(source)
    with reading(where):
        stream = io.BytesIO(source) if isinstance(source, bytes) else open_file(source)
        with zipfile.ZipFile(stream) as archive:
            packed, unpacked = (sum(sizes) for sizes in zip(*map(_sizes, archive.infolist()), (0, 0), strict=True))
            check_unpacked(where, packed, unpacked)
            return {
                one.removesuffix(".npy").lower(): _array(archive, one, where)
                for one in archive.namelist()
                if one.endswith(".npy")
            }


def _sizes(info: zipfile.ZipInfo) -> tuple[int, int]:
    return info.compress_size, info.file_size


def _array(archive: zipfile.ZipFile, name: str, where: str) -> Any:
    """An array whose header matches the size of its data, so that a damaged header allocates no memory."""
    content = io.BytesIO(read_member(archive, name, where))
    version = np.lib.format.read_magic(content)
    if version not in HEADERS:
        raise DataError(
            f"{where}: {name} has npy format version {version}, which is not supported; save it with a current numpy."
        )
    shape, _, kind = HEADERS[version](content)
    if kind.kind not in "biufSU" or not kind.itemsize:
        raise DataError(f"{where}: {name} has dtype {kind}; it must be numbers or strings.")
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != len(content.getbuffer()) - content.tell():
        raise DataError(f"{where}: {name} is damaged: its size does not match shape {list(shape)} and dtype {kind}.")
    content.seek(0)
    return _text(np.lib.format.read_array(content, allow_pickle=False), f"{where}: {name}")


def _text(values: Any, where: str) -> Any:
    """Check that every character of an array of strings is valid."""
    if values.dtype.kind != "U" or not values.size:
        return values
    codes = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("=")).view(np.uint32)
    if bool((codes > 0x10FFFF).any()) or bool(((codes >= 0xD800) & (codes <= 0xDFFF)).any()):
        raise DataError(f"{where} is damaged: its strings have invalid characters.")
    return values


def labels_of(arrays: Arrays, n: int, what: str, path: Path) -> list[str] | None:
    """The label of each of `n` items, as class names if the file has them; None without labels."""
    labels = next((arrays[name] for name in LABELS if name in arrays), None)
    if labels is None:
        return None
    if labels.size != n:
        raise DataError(f"{path} has {n:,} {what} and {labels.size:,} labels.")
    labels = _decoded(labels, path)
    classes = classes_of(arrays, path)
    if classes is None or labels.dtype.kind == "U":
        return [str(label) for label in labels.reshape(n)]
    numbers: list[Any] = labels.reshape(n).tolist()
    wrong = [one for one in numbers if type(one) is not int or not 0 <= one < len(classes)]
    if wrong:
        raise DataError(f"{path} has the label {wrong[0]}, and names {len(classes)} classes, numbered from 0.")
    return [classes[one] for one in numbers]


def classes_of(arrays: Arrays, path: Path) -> list[str] | None:
    classes = next((arrays[name] for name in CLASSES if name in arrays), None)
    if classes is None:
        return None
    return [str(one) for one in _decoded(classes, path).reshape(-1)]


def _decoded(names: Any, path: Path) -> Any:
    """Names as strings, decoded from bytes if necessary."""
    with reading(path):
        return np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names


def ends_of(ends: Any, length: int, path: Path | str) -> list[int]:
    """Offsets: the start of each item in an array, and the end of the last one."""
    fits = ends.ndim == 1 and ends.dtype.kind in "iu" and len(ends) > 0
    found = [int(end) for end in ends] if fits else []
    if not fits or found != sorted(found) or found[0] < 0 or found[-1] > length:
        raise DataError(f"{path} has offsets that are not increasing integers from 0 to {length:,}.")
    return found
