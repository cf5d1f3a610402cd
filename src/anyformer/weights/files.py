"""Safetensors on disk: one file or several, read a tensor at a time, written so that a crash loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anyformer.errors import FolderError, WeightsError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
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
class Stored:
    """A tensor in a file, not yet read."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte mark first
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FolderError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise FolderError(f"{path} must hold a JSON object.")
    return data


def check_fit(
    place: Path, missing: Iterable[str] = (), extra: Iterable[str] = (), wrong: Iterable[str] = (), what: str = "config"
) -> None:
    """One error that names every tensor that does not fit."""
    found = {"Missing": (list(missing), ", "), "Not expected": (list(extra), ", "), "Wrong shapes": (list(wrong), "; ")}
    said = [f" {name} ({len(names)}): {mark.join(names)}." for name, (names, mark) in found.items() if names]
    if said:
        raise WeightsError(f"The weights in {place} do not fit its {what}.{''.join(said)}")


def list_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a folder, by name, without reading any."""
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict):
            raise FolderError(f'{folder / INDEX} has no "weight_map".')
        files = [folder / str(name) for name in sorted(set(index.values()))]
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise FolderError(f"{folder} lacks {len(missing)} of {len(files)} weight files: {', '.join(missing)}.")
    elif (folder / WEIGHTS).exists():
        files = [folder / WEIGHTS]
    else:
        raise FolderError(_no_weights(folder))
    return {stored.name: stored for file in files for stored in _list_file(file)}


def _no_weights(folder: Path) -> str:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    if not pickles:
        return f"{folder} has no weights: neither {WEIGHTS} nor {INDEX} is there."
    return (
        f"{folder} has its weights only as a pickle ({pickles[0]}), which can run code when it is opened, so anyformer"
        " does not. Convert it where you trust it: load the folder with transformers and save_pretrained it again,"
        " which writes safetensors."
    )


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        if _is_pointer(file):
            raise FolderError(
                f"{file} is a pointer of git-lfs and not the weights; fetch them with `git lfs pull` in its checkout."
            ) from None
        raise FolderError(f"{file} cannot be read: it is damaged or cut short ({error}).") from None


def _is_pointer(file: Path) -> bool:
    """What a checkout without git-lfs has in place of a large file."""
    try:
        with file.open("rb") as content:
            return content.read(64).startswith(b"version https://git-lfs")
    except OSError:
        return False


def _list_file(file: Path) -> list[Stored]:
    with _opened(file) as handle:
        found = []
        for name in handle.keys():  # noqa: SIM118 - not a dict
            piece = handle.get_slice(name)
            kind = piece.get_dtype()
            if kind not in _DTYPES:
                raise FolderError(f"{file} holds {name} as {kind}, which anyformer does not read.")
            found.append(Stored(file, name, tuple(piece.get_shape()), _DTYPES[kind]))
        return found


def read_tensors(wanted: Iterable[Stored]) -> Iterator[tuple[Stored, Tensor]]:
    """Each tensor as a view of the mapped file: copy it before asking for the next."""
    by_file: dict[Path, list[Stored]] = {}
    for stored in wanted:
        by_file.setdefault(stored.file, []).append(stored)
    for file, group in by_file.items():
        while group:
            with _opened(file) as handle:
                read = 0
                while group and (read == 0 or read + group[0].bytes <= WINDOW):
                    stored = group.pop(0)
                    read += stored.bytes
                    yield stored, handle.get_tensor(stored.name)


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
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS, metadata)
        return
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, metadata)
    index = {
        "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())},
        "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Write into a temporary folder beside `folder` and put it in place when everything is there.

    A folder that stands there already keeps its other files; it is never seen half-written.
    """
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield draft
        for file in draft.iterdir():
            flush(file)
        flush(draft)
        os.chmod(draft, 0o755)
        if not folder.exists():
            draft.rename(folder)
            flush(folder.parent)
            return
        if not folder.is_dir():
            raise FolderError(f"{folder} is a file; a model is saved as a folder.")
        stale = {p.name for p in folder.glob("model*.safetensors*")} - {p.name for p in draft.iterdir()}
        # The config goes last: until it is there, a reader finds the old one with its own weights' names.
        for file in sorted(draft.iterdir(), key=lambda p: p.name == "config.json"):
            os.replace(file, folder / file.name)
        for name in stale:
            (folder / name).unlink()
        flush(folder)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror or error}.") from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def flush(path: Path) -> None:
    """Make the disk have a file, or a folder's list of files, before anything else is done."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
