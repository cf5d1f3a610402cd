"""Folders saved so that a crash at any moment leaves the old content or the new, never a mixture.

A folder that does not exist yet is written beside its place and renamed. Into one that exists, the files are written
as a hidden draft, which one rename commits; then they are moved into place. A crash before the rename leaves the old
content, and the next save removes the draft. After the rename, `settle` finishes the move: everything in anyformer
that opens a model folder calls it first. Other programs find no weights while files are being moved, so they refuse
the folder instead of reading old and new files together.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from re import Pattern

from anyformer.errors import FolderError
from anyformer.jsonfile import read_json

DRAFT = ".saving-"  # being written; a dead process's draft is removed by the next save
COMMITTED = ".saved"  # complete; its files replace those of the folder
PATIENCE = 10.0  # seconds that a lock is waited for
OBSOLETE = ".obsolete.json"  # in it: the folder's files that the new content does without
# Without these, no program loads a model: they are removed before any other file is moved, and moved after all others.
WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "adapter_model.safetensors")


@contextmanager
def whole_folder(folder: Path, replaces: Pattern[str] | None = None) -> Iterator[Path]:
    """Give a draft folder to write files into, and put them into `folder` all at once when the block ends.

    Files that `folder` already has stay, unless their names match `replaces` and the draft has no such file.
    """
    place = folder.resolve()
    if place.exists() and not place.is_dir():
        raise FolderError(f"{folder} is a file; give a folder.")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        home, prefix = (place, DRAFT) if place.is_dir() else (place.parent, f".{place.name}{DRAFT}")
        with _new_draft(home, prefix) as draft:
            yield draft
            for path in (*draft.rglob("*"), draft):
                flush(path)
            if home == place or not _renamed(draft, place):
                _commit(draft, place, replaces)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror or error}.") from None


def settle(folder: Path) -> None:
    """Finish a save into `folder` that was cut off after its commit."""
    if not _is_committed(folder):
        return
    try:
        with _locked(folder):
            _install(folder)
    except OSError as error:
        raise FolderError(
            f"An interrupted save into {folder} cannot be finished: {error.strerror or error}. Load the folder"
            " once as a user with write permission."
        ) from None


def flush(path: Path) -> None:
    """Have a file's content, or a folder's list of names, written to the disk before anything else is done."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _new_draft(home: Path, prefix: str) -> Iterator[Path]:
    """Make a hidden folder, removed at the end unless it was renamed. Its lock tells others that its process lives."""
    with _locked(home):
        for old in [path for path in home.iterdir() if path.name.startswith(prefix)]:
            with suppress(OSError), _locked(old, free=True):
                shutil.rmtree(old, ignore_errors=True)
        draft = home / f"{prefix}{secrets.token_hex(4)}"
        draft.mkdir()
        alive = _lock(draft)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(alive)


def _renamed(draft: Path, place: Path) -> bool:
    """Whether the draft became the folder; false if another process made the folder in the meantime."""
    try:
        draft.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        return False
    flush(place.parent)
    return True


def _commit(draft: Path, folder: Path, replaces: Pattern[str] | None) -> None:
    with _locked(folder):
        _install(folder)  # what an earlier save committed
        new = [str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file()]
        for name in new:
            _check_inside(folder, name)
        old = [path.name for path in folder.iterdir() if replaces is not None and replaces.fullmatch(path.name)]
        (draft / OBSOLETE).write_text(json.dumps([name for name in old if name not in new]), encoding="utf-8")
        flush(draft / OBSOLETE)
        flush(draft)
        draft.rename(folder / COMMITTED)
        flush(folder)
        _install(folder)


def _is_committed(folder: Path) -> bool:
    """Whether files wait to be moved. A link is not ours: following it would take files from somewhere else."""
    return (folder / COMMITTED).is_dir() and not (folder / COMMITTED).is_symlink()


def _install(folder: Path) -> None:
    """Move committed files into place. Cut off anywhere, it can be called again."""
    if not _is_committed(folder):
        return
    committed = folder / COMMITTED
    files = {str(path.relative_to(committed)) for path in committed.rglob("*") if path.is_file()} - {OBSOLETE}
    obsolete = _obsolete(committed)
    for name in sorted({*obsolete, *files.intersection(WEIGHTS)}, key=_rank, reverse=True):
        (folder / name).unlink(missing_ok=True)
    for name in sorted(files, key=_rank):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _check_inside(folder, name)
        os.replace(committed / name, folder / name)
    flush(folder)
    shutil.rmtree(committed)


def _check_inside(folder: Path, name: str) -> None:
    if not (folder / name).parent.resolve().is_relative_to(folder.resolve()):
        raise FolderError(f"{(folder / name).parent} is a link out of the folder; remove it.")
    if (folder / name).is_dir():
        raise FolderError(f"{folder / name} is a folder, but a file of that name must be saved; remove it.")


def _obsolete(committed: Path) -> list[str]:
    """Names without folders; none once the list itself was removed."""
    names = read_json(committed / OBSOLETE) if (committed / OBSOLETE).exists() else []
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise FolderError(f"{committed / OBSOLETE} is damaged; remove {committed} to discard that save.")
    return names


def _rank(name: str) -> int:
    return name in WEIGHTS


def _lock(folder: Path, free: bool = False) -> int:
    """A lock on a folder, which goes when the number returned is closed or the process dies; nothing is left on the
    disk. With `free`, an error unless nobody holds it; else it is waited for, though not for ever: others hold it for a
    few renames, and a script that locks a folder around our whole process must not stop it. A file system without
    locks gives none: then two processes must not save into one folder at once."""
    import fcntl  # not on every system: loading a model does without

    handle, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            if free:
                os.close(handle)
                raise
            if not isinstance(error, BlockingIOError) or time.monotonic() > deadline:
                return handle
        time.sleep(0.01)


@contextmanager
def _locked(folder: Path, free: bool = False) -> Iterator[None]:
    handle = _lock(folder, free)
    try:
        yield
    finally:
        os.close(handle)
