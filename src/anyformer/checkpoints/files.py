"""Weights on disk: one file or several, safetensors or those of torch.save, read a tensor at a time."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.config import Settings, count_layers
from anyformer.errors import FolderError, WeightsError
from anyformer.jsonfile import check_inside, open_file, read_object
from anyformer.schema import Length, check_fields
from anyformer.upgrades import tensor_name

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TORCH, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
WEIGHT_FILES = re.compile(r"model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json")
SHARD = 5 * 10**9  # bytes a file
WINDOW = 32 * 2**20  # bytes read before the mapping is given back, so that it never adds up to a second copy

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not yet read."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int | None = None  # the byte of its first number; None: safetensors finds it by its name
    stride: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def check_fit(
    place: Path, missing: Iterable[str] = (), extra: Iterable[str] = (), wrong: Iterable[str] = (), what: str = "config"
) -> None:
    """One error that names every tensor that does not fit."""
    found = {"Missing": (list(missing), ", "), "Not expected": (list(extra), ", "), "Wrong shapes": (list(wrong), "; ")}
    said = [f" {name} ({len(names)}): {mark.join(names)}." for name, (names, mark) in found.items() if names]
    if said:
        raise WeightsError(f"The weights in {place} do not fit its {what}.{''.join(said)}")


def check_layers(settings: Settings, tensors: Sized, place: Path) -> None:
    """An error where a config asks for more layers than its file has tensors; before any of them is built."""
    n = count_layers(settings)
    if n > len(tensors):
        raise WeightsError(f"The config in {place} asks for {n:,} layers, but its file has {len(tensors):,} tensors.")


def list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder, by name, without reading any."""
    for index, weights, list_file in ((INDEX, WEIGHTS, list_safetensors), (TORCH_INDEX, TORCH, list_torch)):
        if (folder / index).exists():
            return {stored.name: stored for file in _shards(folder, index) for stored in list_file(file)}
        if (folder / weights).exists():
            return {stored.name: stored for stored in list_file(folder / weights)}
    raise FolderError(_no_weights(folder))


def list_torch(file: Path) -> list[StoredTensor]:
    """The tensors of a .pt or .bin file that is a state dict, or holds one."""
    from anyformer.checkpoints.torch_file import read_torch_file, state_dict

    return list(state_dict(read_torch_file(file), file).values())


def list_own(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder of our own format, by their names today."""
    return {tensor_name(name): stored for name, stored in list_tensors(folder).items()}


def _shards(folder: Path, name: str) -> list[Path]:
    """The files that an index names; all of them lie in the folder."""
    index = read_object(folder / name)
    if "weight_map" not in index:
        raise FolderError(f'{folder / name} has no "weight_map".')
    schema = {"weight_map": dict[str, Annotated[str, Length(1, 200)]]}
    check_fields(index, schema, str(folder / name), error=FolderError)
    files = [folder / name for name in sorted(set(index["weight_map"].values()))]
    for file in files:
        check_inside(file, folder)
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise FolderError(f"{folder} lacks {len(missing)} of {len(files)} weight files: {', '.join(missing[:8])}.")
    return files


def _no_weights(folder: Path) -> str:
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    hint = f" To load {others[0]}, give the path of that file." if others else ""
    return f"{folder} has no weights: none of {WEIGHTS}, {INDEX}, {TORCH} and {TORCH_INDEX} is there.{hint}"


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        open_file(file).close()  # which refuses a pipe
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError, MemoryError) as error:
        if _is_pointer(file):
            raise FolderError(
                f"{file} is a pointer of git-lfs and not the weights; fetch them with `git lfs pull` in its checkout."
            ) from None
        raise FolderError(f"{file} cannot be read: it is damaged or cut short ({error}).") from None


def _is_pointer(file: Path) -> bool:
    """What a checkout without git-lfs has in place of a large file."""
    try:
        with open_file(file) as content:
            return content.read(64).startswith(b"version https://git-lfs")
    except OSError:
        return False


def list_safetensors(file: Path) -> list[StoredTensor]:
    with _opened(file) as handle:
        found = []
        for name in handle.keys():  # noqa: SIM118 - not a dict
            piece = handle.get_slice(name)
            kind = piece.get_dtype()
            if kind not in _DTYPES:
                raise FolderError(f"{file} holds {name} as {kind}, which anyformer does not read.")
            found.append(StoredTensor(file, name, tuple(piece.get_shape()), _DTYPES[kind]))
        return found


def read_tensors(wanted: Iterable[StoredTensor]) -> Iterator[tuple[StoredTensor, Tensor]]:
    """Each tensor as a view of the mapped file: copy it before asking for the next."""
    by_file: dict[Path, list[StoredTensor]] = {}
    for stored in wanted:
        by_file.setdefault(stored.file, []).append(stored)
    for file, group in by_file.items():
        while group and group[0].start is not None:
            yield group[0], _map(group.pop(0))
        while group:
            with _opened(file) as handle:
                read = 0
                while group and (read == 0 or read + group[0].bytes <= WINDOW):
                    stored = group.pop(0)
                    read += stored.bytes
                    yield stored, handle.get_tensor(stored.name)


def _map(stored: StoredTensor) -> Tensor:
    """A tensor of a .pt or .bin file, mapped from its place there."""
    assert stored.start is not None
    if 0 in stored.shape:
        return torch.empty(stored.shape, dtype=stored.dtype)
    count = 1 + sum((size - 1) * step for size, step in zip(stored.shape, stored.stride, strict=True))
    page = stored.start - stored.start % mmap.ALLOCATIONGRANULARITY
    length = stored.start - page + count * stored.dtype.itemsize
    try:
        with open_file(stored.file) as file:
            data = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=page)
    except (OSError, ValueError) as error:
        raise FolderError(f"{stored.file} cannot be read: it is cut short ({error}).") from None
    flat = torch.frombuffer(data, dtype=stored.dtype, count=count, offset=stored.start - page)
    return flat.as_strided(stored.shape, stored.stride)


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one file, with the permissions of any new file; those that the library gives are 0600."""
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, {"format": "pt"})
    path.chmod(mode)


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """One file, or several with an index where they are large."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.element_size()
        if size and size + nbytes > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += nbytes
    if len(shards) == 1:
        write_safetensors(shards[0], folder / WEIGHTS)
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(shard, folder / name)
    index = {
        "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())},
        "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
