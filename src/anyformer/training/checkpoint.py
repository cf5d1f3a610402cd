"""Checkpoints: everything a run needs to go on, written so that a machine may die at any moment.

    checkpoints/step-00000500/state.json            whose it is, where the run stands, size and checksum of each file
    checkpoints/step-00000500/tensors.safetensors   model/…, optimizer/…, average/…; from many devices, their shares

A checkpoint is written under a temporary name, flushed and renamed: one that has its name is whole, unless the disk
damaged it later, which the checksums tell. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anyformer.checkpoints.files import write_safetensors
from anyformer.errors import FolderError
from anyformer.jsonfile import read_object
from anyformer.saving import flush
from anyformer.training.distributed import Devices
from anyformer.upgrades import tensor_name

CHECKPOINTS = "checkpoints"  # their folder, in that of a run
FORMAT = 1
STATE, TENSORS = "state.json", "tensors.safetensors"
CONTENT = ("state", "files", "tensors")
BESIDE = ("format", "checksum")  # in state.json, and not part of what the checksum is of
DRAFT, ASIDE = ".draft-", ".draft-old-"


class CorruptCheckpointError(Exception):
    """A checkpoint that is not whole, and why."""


class OtherRunError(CorruptCheckpointError):
    """A checkpoint that another run wrote."""


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    info: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.folder.name.rpartition("-")[2])

    @property
    def files(self) -> list[Path]:
        return [self.folder / name for name in self.info["files"]]


class CheckpointStore:
    """The checkpoints of a run. Every process calls each method; one writes, or all of them their shares."""

    def __init__(self, folder: Path, devices: Devices, keep: int, every: int = 1, run: str | None = None) -> None:
        self.folder, self.devices, self.keep, self.every, self.run = folder, devices, keep, every, run

    def begin(self) -> None:
        """Make the folder, once: if it is gone later, somebody removed it, and the run must not bring it back."""
        if self.devices.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """A checkpoint of a kind ("step", "best"); an error says which one is still whole."""
        target = self.folder / f"{kind}-{step:08d}"
        draft = self.folder / f"{DRAFT}{kind}-{step:08d}"
        with self._said(target):
            if self.devices.is_main:
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir()
            self.devices.barrier()
            self._write_tensors(draft, tensors)
            self.devices.barrier()
            if self.devices.is_main:
                shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
                _finish(draft, {"run": self.run, "state": state, "tensors": shapes})
                _rename(draft, target)
        self.devices.barrier()
        return target

    def _write_tensors(self, draft: Path, tensors: Mapping[str, Tensor]) -> None:
        if self.devices.sharded:
            from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
            from torch.distributed.checkpoint.state_dict_saver import save

            save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(draft), save_distributed=True))
        elif self.devices.is_main:
            plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
            write_safetensors(plain, draft / TENSORS)

    @contextmanager
    def _said(self, target: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            shutil.rmtree(target.parent / f"{DRAFT}{target.name}", ignore_errors=True)
            if not self.folder.exists():
                raise FolderError(f"{self.folder} was removed during the run; start it again.") from None
            why = getattr(error, "strerror", None) or str(error)
            whole = [checkpoint.step for checkpoint in self.found("step")]
            left = f"go on from step {whole[0]} with --resume" if whole else "nothing was saved before it; begin again"
            raise FolderError(f"{target} cannot be written ({why}); {left}, once there is room.") from None

    def found(self, kind: str) -> list[Checkpoint]:
        """The checkpoints of a kind that can be read, newest first, their tensors not yet looked at."""
        found = []
        for folder in self._folders(kind):
            with contextlib.suppress(CorruptCheckpointError):
                found.append(self._open(folder))
        return found

    def _folders(self, kind: str) -> list[Path]:
        """Newest first; what else lies there (step-backup) is not ours."""
        ours = [path for path in self.folder.glob(f"{kind}-*") if re.fullmatch(rf"{kind}-\d+", path.name)]
        return sorted(ours, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)

    def _open(self, folder: Path) -> Checkpoint:
        info = read_info(folder)
        if info.get("run") != self.run:
            raise OtherRunError("it belongs to another run")
        return Checkpoint(folder, info)

    def regular(self, last: int | None = None) -> list[Checkpoint]:
        """Those of the usual steps, and of the `last` one; not those of a run that was told to stop in between."""
        return [one for one in self.found("step") if one.step % max(self.every, 1) == 0 or one.step == last]

    def whole(self, checkpoints: Sequence[Checkpoint]) -> tuple[list[Checkpoint], list[str]]:
        """Those that are what was written, and a sentence for each that is not."""
        found, damaged = [], []
        for one in checkpoints:
            try:
                verify(one)
                found.append(one)
            except CorruptCheckpointError as why:
                damaged.append(f"{one.folder} is damaged ({why}) and ignored.")
        return found, damaged

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole one, and a sentence for each that had to be passed over."""
        passed: list[str] = []
        for folder in self._folders("step"):
            try:
                checkpoint = self._open(folder)
                verify(checkpoint)
                return checkpoint, passed
            except OtherRunError:
                passed.append(f"{folder} belongs to another run and is ignored.")
            except CorruptCheckpointError as why:
                passed.append(f"{folder} is damaged ({why}); the previous one is used.")
        return None, passed

    def read(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors in place, whole ones or shares, from whole ones or shares."""
        saved = {tensor_name(name): name for name in checkpoint.info["tensors"]}  # today's names, and those in the file
        tensors = {saved.get(name, name): tensor for name, tensor in tensors.items()}
        plain = [path.name for path in checkpoint.files] == [TENSORS]
        if plain and not self.devices.sharded:
            with safe_open(checkpoint.folder / TENSORS, framework="pt", device="cpu") as file:
                for name, tensor in tensors.items():
                    with torch.no_grad():
                        tensor.copy_(file.get_tensor(name))
            return
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        targets = {name: tensor.detach() for name, tensor in tensors.items()}
        reader = HuggingFaceStorageReader(str(checkpoint.folder))
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="torch.distributed is disabled"
            )  # as it should be with one process
            load(targets, storage_reader=reader, no_dist=not self.devices.is_distributed)

    def tidy(self) -> None:
        """Remove what was left half-written, checkpoints past the last `keep`, and bests that none of those names."""
        if not self.devices.is_main:
            return
        for folder in self.folder.glob(f"{DRAFT}*"):
            shutil.rmtree(folder, ignore_errors=True)
        every = self.found("step")
        if not every:
            return
        regular = [one for one in self.regular() if one.step < every[0].step]
        others = [one for one in every[1:] if one not in regular]
        kept = [every[0], *regular, *others][: self.keep]
        names = {checkpoint.folder.name for checkpoint in kept}
        names |= {f"best-{checkpoint.info['state']['best_step']:08d}" for checkpoint in kept}
        for kind in ("step", "best"):
            for folder in self._folders(kind):
                if folder.name not in names and int(folder.name.rpartition("-")[2]) < kept[0].step:
                    self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """Remove a checkpoint, whole or damaged, unless another run wrote it."""
        try:
            self._open(folder)
        except OtherRunError:
            return
        except CorruptCheckpointError:
            pass
        shutil.rmtree(folder, ignore_errors=True)


def read_info(folder: Path) -> dict[str, Any]:
    try:
        info = read_object(folder / STATE)
        content = {name: value for name, value in info.items() if name not in BESIDE}
        text = json.dumps(content, sort_keys=True)
    except FolderError:
        raise CorruptCheckpointError(f"{STATE} cannot be read") from None
    if info.get("checksum") != zlib.crc32(text.encode()) or not info.keys() >= {*CONTENT}:
        raise CorruptCheckpointError(f"{STATE} has another checksum")
    if info.get("format") != FORMAT:
        raise CorruptCheckpointError(f"its format is {info.get('format')}, which this version does not read")
    return info


def verify(checkpoint: Checkpoint) -> None:
    for path in checkpoint.files:
        size, checksum = checkpoint.info["files"][path.name]
        if not path.exists():
            raise CorruptCheckpointError(f"{path.name} is missing")
        if path.stat().st_size != size:
            raise CorruptCheckpointError(f"{path.name} has {path.stat().st_size:,} bytes; expected {size:,}")
        if crc32(path) != checksum:
            raise CorruptCheckpointError(f"{path.name} has another checksum")


def crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(2**22):
            value = zlib.crc32(chunk, value)
    return value


def _finish(draft: Path, known: Mapping[str, Any]) -> None:
    files = {path.name: [path.stat().st_size, crc32(path)] for path in sorted(draft.iterdir())}
    content = json.loads(json.dumps({**known, "files": files}))
    checksum = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    text = json.dumps({"format": FORMAT, **content, "checksum": checksum}, indent=2)
    (draft / STATE).write_text(text + "\n", encoding="utf-8")
    for path in draft.iterdir():
        flush(path)
    flush(draft)


def _rename(draft: Path, target: Path) -> None:
    aside = target.parent / f"{ASIDE}{target.name}"
    if target.exists():  # a damaged one, or the same again: a run that went back repeats itself exactly
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
    draft.rename(target)
    flush(target.parent)
    shutil.rmtree(aside, ignore_errors=True)
