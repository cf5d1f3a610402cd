"""A model folder becomes a function on real things.

embed = af.task("embed", "folder")
embed(["A man rides a bicycle.", "Ein Mann fährt Rad."])
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from os import PathLike
from typing import Any

from anyformer.errors import ConfigError, nearest

TASKS = {"embed": "anyformer.tasks.embed"}  # name -> the module whose `open_task(folder)` makes the function


def task(name: str, folder: str | PathLike[str]) -> Callable[..., Any]:
    """The model in `folder` as a function: one thing in, one answer out; a list in, a list out."""
    if name not in TASKS:
        raise ConfigError(f'There is no task "{name}".{nearest(name, TASKS)} There are: {", ".join(TASKS)}.')
    made: Callable[..., Any] = importlib.import_module(TASKS[name]).open_task(folder)
    return made
