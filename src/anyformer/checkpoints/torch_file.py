"""PyTorch's .pt and .bin files, read as tensors and plain containers; nothing in the file is executed.

    content = read_torch_file(Path("pytorch_model.bin"))     # {"wte.weight": StoredTensor(…), …}

Such a file is a zip archive: a pickle that describes the objects, and one uncompressed entry for each storage. A pickle
is a program for a small stack machine, which may call any function that can be imported. The machine here has only the
opcodes that build numbers, texts, lists, tuples and dicts, and "calls" only the few functions of ALLOWED, by code of
ours. Anything else is refused by name.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from anyformer.checkpoints.files import StoredTensor
from anyformer.errors import FolderError
from anyformer.jsonfile import open_file
from anyformer.schema import shown

MAX_PICKLE = 32 * 2**20  # bytes; what describes a model of 700 tensors has about 150,000
MAX_STEPS = 3_000_000  # opcodes
MAX_DIMENSIONS = 8
_BAD_ZIP = (
    *(zipfile.BadZipFile, NotImplementedError, OSError, ValueError, KeyError, EOFError, RuntimeError),
    *(struct.error, OverflowError, MemoryError),
)
_BAD_PICKLE = (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error, MemoryError)
_OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began a file before PyTorch 1.6

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
ORDERED = "collections.OrderedDict"
ALLOWED = frozenset({TENSOR, PARAMETER, ORDERED, *(f"torch.{name}" for name in _STORAGES)})


@dataclass(frozen=True)
class _Global:
    """A function or class that the pickle names; one of ALLOWED."""

    name: str


@dataclass(frozen=True)
class _Storage:
    """The numbers of an entry of the archive: where they begin in the file, and how many they are."""

    dtype: torch.dtype
    start: int
    length: int


class _Mark:
    """What MARK puts on the stack."""


_MARK = _Mark()


class FormError(Exception):
    """What the file holds, and why it is not read."""


def is_torch_file(path: Path) -> bool:
    """Whether a path is a file that is named as those of torch.save are."""
    return path.suffix in (".pt", ".pth", ".bin", ".ckpt") and path.is_file()


def read_torch_file(file: Path) -> Any:
    """The content of a .pt or .bin file: plain containers with a StoredTensor for each tensor, none of them read."""
    try:
        with open_file(file) as stream:
            _check_kind(stream)
            with zipfile.ZipFile(stream) as archive:
                return _Archive(file, stream, archive).content()
    except FormError as problem:
        raise FolderError(f"{file} {problem}") from None
    except _BAD_ZIP as error:
        raise FolderError(f"{file} cannot be read: it is damaged or cut short ({shown(str(error))}).") from None


def state_dict(content: Any, file: Path) -> dict[str, StoredTensor]:
    """The tensors by name: the content itself, or the one dict in it that holds the weights of a training run."""
    names = ("model_state_dict", "state_dict", "model")
    inner = [content[name] for name in names if isinstance(content, dict) and isinstance(content.get(name), dict)]
    for found in (content, *inner):
        if isinstance(found, dict) and found and all(isinstance(value, StoredTensor) for value in found.values()):
            return {str(name): replace(tensor, name=str(name)) for name, tensor in found.items()}
    raise FolderError(
        f"{file} holds no dict of tensors alone, neither by itself nor as {', '.join(names)}; save the model's"
        " state_dict() alone."
    )


def _check_kind(stream: BinaryIO) -> None:
    first = stream.read(512)
    stream.seek(0)
    if first.startswith(_OLD) or first[257:262] == b"ustar":
        raise FormError(
            "has the form that torch.save wrote before PyTorch 1.6, which anyformer does not read; load it with torch"
            " where you trust it and save its state_dict() again."
        )
    if first.startswith(b"version https://git-lfs"):
        raise FormError("is a pointer of git-lfs, not the weights; fetch them with `git lfs pull` in its checkout.")
    if not first.startswith(b"PK"):
        raise FormError("is not a file of torch.save: it is no zip archive.")


class _Archive:
    """The entries of the zip: the pickle, and the storages beside it."""

    def __init__(self, file: Path, stream: BinaryIO, archive: zipfile.ZipFile) -> None:
        self.file, self.stream, self.archive = file, stream, archive
        names = archive.namelist()
        pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if any(name.endswith("/constants.pkl") for name in names):
            raise FormError("is a TorchScript archive, which holds code; anyformer reads state dicts alone.")
        if len(pickles) != 1:
            raise FormError("is not a file of torch.save: it has no data.pkl.")
        self.root = pickles[0].removesuffix("data.pkl")
        self.size = stream.seek(0, 2)

    def content(self) -> Any:
        if f"{self.root}byteorder" in self.archive.namelist() and self._read("byteorder", 16) != b"little":
            raise FormError("has its numbers in big-endian order, which anyformer does not read.")
        content = self._read("data.pkl", MAX_PICKLE)
        try:
            return _Machine(content, self).run()
        except _BAD_PICKLE as error:
            raise FormError(f"has a damaged data.pkl ({type(error).__name__}: {shown(str(error))}).") from None

    def _read(self, name: str, limit: int) -> bytes:
        info = self.archive.getinfo(self.root + name)
        if info.file_size > limit:
            raise FormError(f"has a {name} of {info.file_size:,} bytes; the maximum is {limit:,}.")
        start = self._start(info)
        self.stream.seek(start)
        return self.stream.read(info.file_size)

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of an entry begin in the file; all of them lie in it."""
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise FormError("is compressed or encrypted, which no file of torch.save is.")
        self.stream.seek(info.header_offset)
        header = self.stream.read(30)
        if header[:4] != b"PK\x03\x04":
            raise FormError("is damaged: its directory points to a place where no entry begins.")
        start: int = info.header_offset + 30 + sum(struct.unpack("<2H", header[26:]))
        if start + info.file_size > self.size:
            raise FormError("is cut short: an entry ends past the end of the file.")
        return start

    def storage(self, record: Any) -> _Storage:
        """What a persistent id stands for: ("storage", class, key, device, length)."""
        kind, found, key, _, length = record
        dtype = _STORAGES.get(found.name.removeprefix("torch.")) if isinstance(found, _Global) else None
        if kind != "storage" or dtype is None or not isinstance(key, str) or type(length) is not int or length < 0:
            raise FormError("has a damaged record of a storage.")
        info = self.archive.getinfo(f"{self.root}data/{key}")
        if length * dtype.itemsize > info.file_size:
            raise FormError(
                f"says that storage {shown(key)} has {length:,} numbers of {dtype.itemsize} bytes; it has"
                f" {info.file_size:,} bytes."
            )
        start = self._start(info)
        if start % dtype.itemsize:
            raise FormError(f"has storage {shown(key)} at an odd place, where no file of torch.save has one.")
        return _Storage(dtype, start, length)

    def tensor(self, storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> StoredTensor:
        """A view of a storage; every number of it is in the storage, and none is there twice."""
        numbers = (offset, *shape, *stride)
        valid = isinstance(storage, _Storage) and len(shape) == len(stride) <= MAX_DIMENSIONS
        if not valid or any(type(n) is not int or not 0 <= n < 2**48 for n in numbers):
            raise FormError("has a tensor whose shape or place is damaged.")
        count, last = 1, 0
        for size, step in zip(shape, stride, strict=True):
            count, last = count * size, last + (size - 1) * step
        if count and (offset + last >= storage.length or count > last + 1):
            raise FormError(f"has a tensor of shape {list(shape)} that is not in its storage of {storage.length:,}.")
        start = storage.start + offset * storage.dtype.itemsize
        return StoredTensor(self.file, "", tuple(shape), storage.dtype, start, tuple(stride))


class _Machine:
    """The stack machine of a pickle, with the opcodes of OPCODES."""

    def __init__(self, content: bytes, archive: _Archive) -> None:
        self.content, self.at, self.archive = content, 0, archive
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MAX_STEPS):
            code = self.take(1)[0]
            if code == ord("."):
                return self.stack.pop()
            if code not in OPCODES:
                raise FormError(
                    f"has opcode {bytes([code])!r} in its data.pkl, which builds neither tensors nor plain containers."
                )
            OPCODES[code](self)
        raise FormError(f"has a data.pkl of more than {MAX_STEPS:,} steps.")

    def take(self, n: int) -> bytes:
        found = self.content[self.at : self.at + n]
        self.at += n
        if len(found) < n:
            raise ValueError("it ends too early")
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, form: str) -> str:
        return self.take(self.number(form)).decode("utf-8")

    def line(self) -> str:
        end = self.content.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode("utf-8")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """What was pushed since the last mark, which goes, too."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                found = self.stack[index + 1 :]
                del self.stack[index:]
                return found
        raise ValueError("a mark is missing")

    def memoize(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def find(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "an unnamed function"
        if full not in ALLOWED:
            raise FormError(
                f"holds {shown(full)}, which is neither a tensor nor a plain container and could run code; load it"
                " where you trust it and save its state_dict() alone."
            )
        self.push(_Global(full))

    def find_on_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.find(module, name)

    def call(self) -> None:
        """One of the functions of ALLOWED, by code of ours."""
        given, function = self.stack.pop(), self.stack.pop()
        name = function.name if isinstance(function, _Global) else ""
        if name == TENSOR:
            self.push(self.archive.tensor(*given))
        elif name == PARAMETER and isinstance(given[0], StoredTensor):
            self.push(given[0])
        elif name == ORDERED:
            made: dict[Any, Any] = {}
            for key, value in given[0] if given else ():
                put(made, key, value)
            self.push(made)
        else:
            raise FormError(f"calls {shown(name or type(function).__name__)}, which is no function that makes tensors.")

    def build(self) -> None:
        """The attributes of an ordered dict (versions of modules), which nothing here needs."""
        self.stack.pop()
        _container(self.stack[-1], dict)

    def append(self, values: list[Any]) -> None:
        _container(self.stack[-1], list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        made = _container(self.stack[-1], dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            put(made, key, value)

    def pop(self, n: int) -> list[Any]:
        found = self.stack[len(self.stack) - n :]
        if len(found) < n:
            raise IndexError("the stack is empty")
        del self.stack[len(self.stack) - n :]
        return found


def _container(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise FormError(f"fills a {type(value).__name__.strip('_')} as if it were a {kind.__name__}.")
    return value


def put(made: dict[Any, Any], key: Any, value: Any) -> None:
    if type(key) not in (str, int, bool, float, type(None)):
        raise FormError(f"has a {type(key).__name__.strip('_')} as a key of a dict; texts and numbers are read.")
    made[key] = value


OPCODES: Mapping[int, Callable[[_Machine], Any]] = {
    ord(code): action
    for code, action in {
        "\x80": lambda m: m.take(1),  # PROTO
        "\x95": lambda m: m.take(8),  # FRAME
        "(": lambda m: m.push(_MARK),
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(True),
        "\x89": lambda m: m.push(False),
        "J": lambda m: m.push(m.number("<i")),
        "K": lambda m: m.push(m.number("<B")),
        "M": lambda m: m.push(m.number("<H")),
        "\x8a": lambda m: m.push(int.from_bytes(m.take(m.number("<B")), "little", signed=True)),  # LONG1
        "G": lambda m: m.push(m.number(">d")),
        "X": lambda m: m.push(m.text("<I")),
        "\x8c": lambda m: m.push(m.text("<B")),
        "U": lambda m: m.push(m.text("<B")),  # texts of Python 2
        "T": lambda m: m.push(m.text("<I")),
        "}": lambda m: m.push({}),
        "]": lambda m: m.push([]),
        ")": lambda m: m.push(()),
        "t": lambda m: m.push(tuple(m.since_mark())),
        "\x85": lambda m: m.push(tuple(m.pop(1))),
        "\x86": lambda m: m.push(tuple(m.pop(2))),
        "\x87": lambda m: m.push(tuple(m.pop(3))),
        "a": lambda m: m.append(m.pop(1)),
        "e": lambda m: m.append(m.since_mark()),
        "s": lambda m: m.set_items(m.pop(2)),
        "u": lambda m: m.set_items(m.since_mark()),
        "q": lambda m: m.memoize(m.number("<B")),
        "r": lambda m: m.memoize(m.number("<I")),
        "\x94": lambda m: m.memoize(len(m.memo)),
        "h": lambda m: m.push(m.memo[m.number("<B")]),
        "j": lambda m: m.push(m.memo[m.number("<I")]),
        "c": lambda m: m.find(m.line(), m.line()),
        "\x93": lambda m: m.find_on_stack(),
        "R": lambda m: m.call(),
        "b": lambda m: m.build(),
        "Q": lambda m: m.push(m.archive.storage(m.stack.pop())),  # BINPERSID
    }.items()
}
