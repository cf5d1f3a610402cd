"""The folder of a run: whose it is, what it was begun with, and whether it may be written to."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from anyformer.errors import ConfigError, FolderError
from anyformer.train.checkpoint import CHECKPOINTS
from anyformer.train.report import METRICS, REPORT
from anyformer.train.settings import FREE, TrainSettings
from anyformer.train.tensorboard import FOLDER as TENSORBOARD
from anyformer.version import __version__
from anyformer.weights.files import flush, read_json

RECORD, START = "train.json", "start"
WRITTEN = (RECORD, START, CHECKPOINTS, METRICS, REPORT, TENSORBOARD)  # by a run before its end
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse, before any work, a folder that holds something already, or that has nothing to continue."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; --out takes a folder.")
    begun = (folder / RECORD).exists()
    if resume and not begun:
        raise FolderError(f"There is no run in {folder} to continue; leave --resume out.")
    if begun and not resume:
        raise FolderError(f"{folder} holds a run already: add --resume to go on with it, or choose another --out.")
    if folder.is_dir() and not begun and any(folder.iterdir()):
        raise FolderError(f"{folder} is not empty; choose another --out, or empty it.")
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not os.access(parent, os.W_OK):
        raise FolderError(f"{folder} cannot be written: permission denied; choose another --out.")


def begin_folder(folder: Path, settings: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Note what a run is begun with: the exact command, the versions, every setting, the data."""
    record = {
        "command": shlex.join(["anyformer", *sys.argv[1:]]) if "anyformer" in sys.argv[0] else shlex.join(sys.argv),
        "versions": {"anyformer": __version__, "python": platform.python_version(), **versions()},
        "settings": dict(settings),
        "data": dict(data),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{RECORD}"
        draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        flush(draft)
        os.replace(draft, folder / RECORD)
        flush(folder)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {error.strerror}; choose another --out.") from None


def forget_folder(folder: Path) -> None:
    """A run that failed before it saved anything leaves nothing, so that it can be begun again with other settings."""
    if any(folder.glob(f"{CHECKPOINTS}/[!.]*")) or (folder / "config.json").exists():
        return
    for name in WRITTEN:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # what else is in it is not ours
        folder.rmdir()


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def recorded_pace(folder: Path) -> dict[str, Any]:
    """The train.* settings that a run was begun with."""
    known = {f"train.{name}" for name in TrainSettings.names()}
    return {key: value for key, value in read_json(folder / RECORD).get("settings", {}).items() if key in known}


def check_same(folder: Path, settings: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """A run goes on with what it was begun with; only how long, how often and where may change."""
    record = read_json(folder / RECORD)
    was = record.get("settings", {})
    now = json.loads(json.dumps(dict(settings)))
    free = {f"train.{name}" for name in FREE}
    # What the record does not know of came with a later version, and cannot have been otherwise.
    changed = [key for key in was if key not in free and was[key] != now.get(key)]
    if changed:
        key = changed[0]
        raise ConfigError(
            f"The run in {folder} was begun with {key}={was.get(key)!r}, and now it is {now.get(key)!r}; a run goes on"
            " with the settings that it has: give the same ones, or begin another in another folder."
        )
    if record.get("data") != json.loads(json.dumps(dict(data))):
        raise ConfigError(f"The data of the run in {folder} has changed since it was begun; begin another one.")
