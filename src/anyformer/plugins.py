"""Plugins: modules that register families, tasks, scores and position encodings with `af.register`.

A plugin is imported by its user, by --plugin MODULE, or as an entry point of an installed package, in the group
anyformer.recipes or anyformer.tasks. A model folder says which plugins it needs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from anyformer.errors import ConfigError, Error, FolderError

Kind = Literal["family", "task", "score", "positions"]
GROUPS = {"recipes": "anyformer.recipes", "tasks": "anyformer.tasks"}  # of entry points

ORIGINS: dict[tuple[str, str], str] = {}  # (kind, name) of what was registered from outside -> its plugin
SCORES: dict[str, Callable[[int, int], Any]] = {}  # name -> the module, from the number and the width of heads
POSITIONS: dict[str, Callable[[Any], Any]] = {}  # name -> the Positions, from the model's settings

_LOADING: ContextVar[str | None] = ContextVar("loading", default=None)  # the plugin that is being imported


def load(name: str) -> None:
    """Import a plugin: a module by its name, from the current folder too, or a .py file."""
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise ConfigError(f"There is no plugin {name}; give a .py file, or the name of a module.")
    module = path.stem if is_file else name
    with _import_path(path.absolute().parent if is_file else Path.cwd()):
        try:
            _import(module, lambda: importlib.import_module(module))
        except ModuleNotFoundError as error:
            missing = error.name or module
            if missing == module or module.startswith(f"{missing}."):
                raise ConfigError(f"There is no module {module} for --plugin, installed or in {Path.cwd()}.") from None
            raise ConfigError(f"The plugin {name} needs the module {missing}, which is not installed.") from None


@cache
def load_entry_points(group: str) -> None:
    """Import the plugins of the installed packages; the names of entry points mean nothing."""
    for point in entry_points(group=GROUPS[group]):
        _import_entry_point(point)


def _import_entry_point(point: EntryPoint) -> None:
    try:
        _import(point.module, point.load)
    except ModuleNotFoundError as error:
        package = "" if point.dist is None else f" of the package {point.dist.name}"
        raise ConfigError(f"The plugin {point.module}{package} needs {error.name}, which is not installed.") from None


def _import(module: str, load: Callable[[], object]) -> None:
    token = _LOADING.set(module)
    try:
        load()
    except ModuleNotFoundError:
        raise
    except Error as error:
        raise ConfigError(f"The plugin {module} cannot be loaded: {error}") from None
    except Exception as error:  # it may raise anything
        raise ConfigError(f"The plugin {module} fails to import: {type(error).__name__}: {error}.") from error
    finally:
        _LOADING.reset(token)


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """Modules of a folder can be imported in this context."""
    added = str(folder) not in sys.path
    if added:
        sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if added:
            sys.path.remove(str(folder))


def note(kind: Kind, name: str, module: str) -> None:
    """Record what a plugin registered. `module` is who called, unless a plugin is being imported."""
    ORIGINS[kind, name] = _LOADING.get() or module


def needed(parts: Mapping[Kind, list[str]]) -> dict[str, list[str]]:
    """The plugins of names by kind, for config.json.  {"my_plugin": ["family mine"]}"""
    found: dict[str, list[str]] = {}
    for kind, names in parts.items():
        for name in names:
            if (kind, name) in ORIGINS:
                found.setdefault(ORIGINS[kind, name], []).append(f"{kind} {name}")
    return found


def check(folder: Path, saved: Mapping[str, Any]) -> None:
    """Raise FolderError if a folder needs a plugin that is not loaded. `saved` is what `needed` gave. A task may be
    missing: the model loads without it."""
    for module, names in saved.items():
        for name in names:
            kind, _, rest = str(name).partition(" ")
            if kind != "task" and (kind, rest) not in ORIGINS:
                raise FolderError(missing(folder, module, f'the {kind} "{rest}"'))


def missing(folder: Path, module: str, what: str) -> str:
    """What to do where a plugin is not loaded."""
    if module == "__main__":
        return f"{folder} needs {what}, which a script registered; register it before, with af.register."
    return (
        f"{folder} needs {what} of the plugin {module}, which is not loaded; pass --plugin {module}, or in Python"
        f" import {module} first."
    )
