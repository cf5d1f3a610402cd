"""The GGUF file format (llama.cpp's): named fields, then named tensors. Only what is asked for is read.

    file = open_gguf(Path("model.gguf"))
    file.fields["general.architecture"], file.tensors["token_embd.weight"].shape

The `gguf` package knows the ways of packing numbers; its reader makes several objects for each word of the vocabulary,
which takes seconds, so the format itself, which is simple, is read here.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from anyformer.errors import ConfigError, FolderError
from anyformer.jsonfile import open_file
from anyformer.schema import Range, check_fields

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
ALIGNMENT = 32  # of the tensors, where the file does not say
MAX_DIMENSIONS = 4  # of a tensor, as in llama.cpp
_DAMAGED = (ValueError, KeyError, OverflowError, struct.error, MemoryError, ConfigError)


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor in the file: `kind` is the number of its type, `start` the offset of its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int


class GGUFArray:
    """A list in the file, read on access: vocabularies are long."""

    def __init__(self, cursor: GGUFReader, kind: int, length: int) -> None:
        self._cursor, self._kind, self.length = cursor.copy(), kind, length
        cursor.skip(kind, length)

    @cached_property
    def values(self) -> list[Any]:
        """The entries; FolderError where they are damaged."""
        try:
            return [self._cursor.value(self._kind) for _ in range(self.length)]
        except _DAMAGED as error:
            raise FolderError(f"A list in a GGUF file is damaged: {error}.") from None


class GGUFReader:
    """A position in the file that advances with each read."""

    def __init__(self, data: mmap.mmap, at: int = 0) -> None:
        self.data, self.at = data, at

    def copy(self) -> GGUFReader:
        return GGUFReader(self.data, self.at)

    def numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def text(self) -> str:
        (length,) = self.numbers("Q")
        end = self.at + length
        if end > len(self.data):
            raise ValueError("it ends in the middle of a text")
        found = self.data[self.at : end].decode("utf-8")
        self.at = end
        return found

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            inner, length = self.numbers("IQ")
            return GGUFArray(self, inner, length)
        return self.numbers(_SCALARS[kind])[0]

    def skip(self, kind: int, times: int) -> None:
        if kind in _SCALARS:
            self.at += times * struct.calcsize(f"<{_SCALARS[kind]}")
            if self.at > len(self.data):
                raise ValueError("it ends in the middle of a list")
        elif kind == _TEXT:
            data, at = self.data, self.at
            for _ in range(times):
                at += 8 + int.from_bytes(data[at : at + 8], "little")
                if at > len(data):
                    raise ValueError("it ends in the middle of a list")
            self.at = at
        else:
            for _ in range(times):
                self.value(kind)


@dataclass(frozen=True)
class GGUF:
    """Lists among the fields are `GGUFArray`s. `data` is the whole file, mapped."""

    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    data: mmap.mmap


def open_gguf(file: Path) -> GGUF:
    try:
        with open_file(file) as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return _parse(data)
    except OSError as error:
        raise FolderError(f"{file} cannot be read: {error.strerror or error}.") from None
    except RecursionError:
        raise FolderError(f"{file} is damaged: its lists are nested too deeply.") from None
    except _DAMAGED as error:
        raise FolderError(f"{file} is not a GGUF file, or a damaged one: {error}.") from None


def _parse(data: mmap.mmap) -> GGUF:
    cursor = GGUFReader(data, 4)
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, n_tensors, n_fields = cursor.numbers("IQQ")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, not 2 or 3")
    fields = {}
    for _ in range(n_fields):
        name = cursor.text()
        fields[name] = cursor.value(*cursor.numbers("I"))
    found = []
    for _ in range(n_tensors):
        name = cursor.text()
        (n_dims,) = cursor.numbers("I")
        if not 1 <= n_dims <= MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name[:80]} has {n_dims} dimensions")
        shape = tuple(reversed(cursor.numbers(f"{n_dims}Q")))
        found.append(GGUFTensor(name, shape, *cursor.numbers("IQ")))
    check_fields(fields, {"general.alignment": Annotated[int, Range(1, 2**20)]}, "its fields")
    align = fields.get("general.alignment", ALIGNMENT)
    base = -(-cursor.at // align) * align
    tensors = {t.name: GGUFTensor(t.name, t.shape, t.kind, base + t.start) for t in found}
    return GGUF(fields, tensors, data)
