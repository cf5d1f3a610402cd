"""The folder of a run: whose it is, what it was begun with, and whether it may be written to."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from anyformer.config import Settings
from anyformer.errors import ConfigError, FolderError
from anyformer.jsonfile import read_object
from anyformer.saving import flush
from anyformer.schema import check_fields
from anyformer.training.checkpoint import CHECKPOINTS
from anyformer.training.datafiles import FILES, write_files
from anyformer.training.dotted_keys import flatten, upgrade_keys
from anyformer.training.report import METRICS, REPORT
from anyformer.training.settings import FREE, TrainSettings
from anyformer.training.tensorboard import FOLDER as TENSORBOARD
from anyformer.upgrades import upgrade_recipe
from anyformer.version import __version__

RECORD, START, LOCK = "train.json", "start", ".lock"
WRITTEN = (RECORD, FILES, START, CHECKPOINTS, METRICS, REPORT, TENSORBOARD)  # by a run before its end
DRAFT = f".{RECORD}"
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


def check_folder(folder: Path, resume: bool) -> bool:
    """Whether `folder` has a run to continue; refuse, before any work, one that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; --out must be a folder.")
    begun = (folder / RECORD).exists()
    if begun and not resume:
        raise FolderError(f"{folder} already has a run: add --resume to continue it, or choose another --out.")
    if folder.is_dir() and not begun and {path.name for path in folder.iterdir()} - {LOCK, DRAFT, FILES}:
        raise FolderError(f"{folder} is not empty; choose another --out, or empty it.")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK):
        raise FolderError(f"{folder} cannot be written: permission denied; choose another --out.")
    return begun


def is_first() -> bool:
    """Whether this is the process that writes, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder while this one writes to it. The first of torchrun's processes holds the lock
    for all. The operating system lets it go when that process dies, however it does."""
    if not is_first():
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _lock(folder)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror}; choose another --out.") from None
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)
        with contextlib.suppress(OSError):  # of a run that began nothing
            for path in made:
                path.rmdir()


def _lock(folder: Path) -> int:
    import fcntl  # not on every system

    while True:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = re.match(r"process \d+ on [\w.-]+", os.read(handle, 300).decode(errors="replace"))
            os.close(handle)
            holder = f" ({found[0]})" if found else ""
            raise FolderError(
                f"Another run is writing to {folder}{holder}; wait until it ends, or choose another --out."
            ) from None
        except OSError:  # a file system without locks
            pass
        if os.path.exists(folder / LOCK) and os.path.samestat(os.fstat(handle), os.stat(folder / LOCK)):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return handle
        os.close(handle)  # of a run that has just ended, and has taken its lock away


def start_run_folder(
    folder: Path, settings: Mapping[str, Any], data: Mapping[str, Any], files: Sequence[Path] = ()
) -> None:
    """Note what a run is begun with: the exact command, the versions, every setting, the data and its loose files."""
    record = {
        "run": secrets.token_hex(8),
        "command": shlex.join(["anyformer", *sys.argv[1:]]) if "anyformer" in sys.argv[0] else shlex.join(sys.argv),
        "versions": versions(),
        "settings": dict(settings),
        "data": dict(data),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files(folder, files)
        draft = folder / DRAFT
        draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        flush(draft)
        os.replace(draft, folder / RECORD)
        flush(folder)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror}; choose another --out.") from None


def remove_run_folder(folder: Path) -> None:
    """A run that failed before it saved anything leaves nothing, so that it can be begun again with other settings."""
    if any(folder.glob(f"{CHECKPOINTS}/[!.]*")) or (folder / "config.json").exists():
        return
    for name in WRITTEN:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # what else is in it is not ours
        folder.rmdir()


def run_id(folder: Path) -> str | None:
    """What tells a run's checkpoints from those of any other; None if `folder` has no record of a run."""
    found = _record(folder).get("run") if (folder / RECORD).exists() else None
    return None if found is None else str(found)


def _record(folder: Path) -> dict[str, Any]:
    """What a run was begun with."""
    record = read_object(folder / RECORD)
    check_fields(record, {"settings": dict[str, Any], "versions": dict[str, str]}, str(folder / RECORD))
    return record


def versions() -> dict[str, str]:
    found = {"anyformer": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def saved_settings(folder: Path) -> dict[str, Any]:
    """Every setting that a run was begun with, as it was saved: under the names and values of that time."""
    return dict(_record(folder).get("settings", {}))


def saved_recipe(folder: Path, name: str) -> str:
    """Today's name of the recipe of a run that is continued. An old name is accepted only if the run began with it."""
    command = str(_record(folder).get("command", ""))
    return upgrade_recipe(name) if name in re.findall(r"[\w.-]+", command) else name


def saved_schedule(folder: Path) -> dict[str, Any]:
    """The train.* settings that a run was begun with."""
    train = {"train": TrainSettings()}
    saved = upgrade_keys(train, saved_settings(folder))
    return {key: value for key, value in saved.items() if key in flatten(train)}


def check_same(folder: Path, sections: Mapping[str, Settings], data: Mapping[str, Any]) -> None:
    """A run goes on with what it was begun with; only how long, how often and where may change. Other versions of what
    it runs on are said."""
    record = _record(folder)
    _compare_versions(folder, record.get("versions", {}))
    was = upgrade_keys(sections, record.get("settings", {}))
    now = json.loads(json.dumps(flatten(sections)))
    free = {f"train.{name}" for name in FREE}
    # What the record does not know of came with a later version, and cannot have been otherwise.
    changed = [key for key in was if key not in free and was[key] != now.get(key)]
    if changed:
        key = changed[0]
        raise ConfigError(
            f"The run in {folder} began with {key}={was.get(key)!r}, but now it is {now.get(key)!r}. Give the same"
            " value, or start another run with another --out."
        )
    if record.get("data") != json.loads(json.dumps(dict(data))):
        raise ConfigError(f"The data of the run in {folder} has changed since it began; start another run.")


def _compare_versions(folder: Path, was: Mapping[str, str]) -> None:
    now = versions()
    changed = [name for name in now if name in was and was[name] != now[name]]
    if changed and is_first():
        before, today = (", ".join(f"{name} {found[name]}" for name in changed) for found in (was, now))
        warnings.warn(
            f"The run in {folder} began with {before} and continues with {today}, so its results may differ from"
            " those of an uninterrupted run.",
            stacklevel=3,
        )
