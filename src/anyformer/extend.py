"""`af.register`: families, tasks, scores and position encodings of your own."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from torch import nn

from anyformer import plugins, registry, tasks
from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.positions import Positions
from anyformer.errors import ConfigError
from anyformer.model import Model
from anyformer.recipes import settings as spellings
from anyformer.registry import Family
from anyformer.tasks.base import Task

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
BUILT_IN = {
    "score": tuple(spellings.SCORES),
    "positions": (*spellings.EMBEDDED, *spellings.EMBEDDED_2D, *spellings.ATTENDED, *spellings.ATTENDED_2D),
}
TaskType = TypeVar("TaskType", bound=type[Task])


@overload
def register(thing: TaskType) -> TaskType: ...
@overload
def register(thing: str, *, score: Callable[[int, int], nn.Module]) -> None: ...
@overload
def register(thing: str, *, positions: Callable[[Any], Positions]) -> None: ...
@overload
def register(
    thing: str,
    *,
    config: type[Settings],
    build: Callable[[Any], Model],
    sizes: Mapping[str, Settings],
    init: Callable[[Any], InitConfig] = ...,
    training: Mapping[str, Mapping[str, object]] = ...,
    description: str = ...,
) -> None: ...
def register(
    thing: object,
    *,
    config: type[Settings] | None = None,
    build: Callable[[Any], Model] | None = None,
    sizes: Mapping[str, Settings] = MappingProxyType({}),
    init: Callable[[Any], InitConfig] = lambda config: InitConfig(),
    training: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    description: str = "",
    score: Callable[[int, int], nn.Module] | None = None,
    positions: Callable[[Any], Positions] | None = None,
) -> object:
    """Add a family, a task, a score or a position encoding of your own; a name that is taken is an error.

    register("my-family", config=MyConfig, build=build, sizes={"my-tiny": MyConfig()})    # build(config) -> Model
    register("my-score", score=lambda n_heads, d_head: MyScore(d_head))      # then score="my-score"
    register("my-positions", positions=lambda config: MyPositions(config.n_heads))
    register(MyTask)                                                         # a subclass of Task; also a decorator

    Folders that are saved with it name the module that registered it: load it with --plugin MODULE, or declare an entry
    point in the group anyformer.recipes or anyformer.tasks.
    """
    module = str(sys._getframe(1).f_globals.get("__name__", "__main__"))
    if inspect.isclass(thing):
        return _register_task(thing, module)
    if not isinstance(thing, str):
        raise ConfigError(f"af.register takes a name or a task class, not {type(thing).__name__}.")
    if not NAME.fullmatch(thing):
        raise ConfigError(f'The name "{thing[:60]}" may have lower-case letters, digits, hyphens and dots only.')
    if (score is None) + (positions is None) + (config is None) != 2 or (config is None) != (build is None):
        raise ConfigError(f'af.register("{thing}") takes config, build and sizes, or score, or positions.')
    if score is not None:
        _register_part("score", thing, score, plugins.SCORES, module)
    elif positions is not None:
        _register_part("positions", thing, positions, plugins.POSITIONS, module)
    elif config is not None and build is not None:
        _register_family(Family(thing, config, build, init, description or thing), sizes, training, module)
    return None


def _again(kind: plugins.Kind, name: str, module: str) -> bool:
    """Whether a script or notebook registers what it has registered before, as when a cell runs again."""
    return module == "__main__" == plugins.ORIGINS.get((kind, name))


def _register_family(
    family: Family, sizes: Mapping[str, Settings], training: Mapping[str, Mapping[str, object]], module: str
) -> None:
    if not (isinstance(family.config, type) and issubclass(family.config, Settings)):
        raise ConfigError(f'The config of the family "{family.name}" must be a dataclass that subclasses af.Settings.')
    wrong = [name for name, settings in sizes.items() if not isinstance(settings, family.config)]
    if wrong or not sizes:
        what = f'"{wrong[0]}" is not' if wrong else "sizes is empty; it needs a name for each"
        raise ConfigError(f'Sizes of the family "{family.name}": {what} a {family.config.__name__}.')
    registry.load_built_in()
    if _again("family", family.name, module):
        registry.remove(family.name)
    registry.register(family, sizes, training)
    plugins.note("family", family.name, module)


def _register_task(kind: type[Any], module: str) -> object:
    if not issubclass(kind, Task):
        raise ConfigError(f"{kind.__name__} is not a subclass of Task, so it cannot be registered as a task.")
    lacking = [name for name in ("name", "about", "columns", "wanted") if not hasattr(kind, name)]
    if lacking:
        raise ConfigError(f"The task {kind.__name__} needs the class attribute {lacking[0]}.")
    if kind.name in tasks.TASKS and not _again("task", kind.name, module):
        raise ConfigError(f'There is a task "{kind.name}" already; choose another name.')
    tasks.OWN[kind.name] = kind
    tasks.TASKS[kind.name] = (kind.__module__, kind.__qualname__)
    plugins.note("task", kind.name, module)
    return kind


def _register_part(
    kind: plugins.Kind, name: str, make: Callable[..., Any], known: dict[str, Callable[..., Any]], module: str
) -> None:
    if not callable(make):
        raise ConfigError(f"{kind} must be a function that makes the module, not {type(make).__name__}.")
    if name in BUILT_IN[kind] or (name in known and not _again(kind, name, module)):
        what = "score" if kind == "score" else "position encoding"
        raise ConfigError(f'There is a {what} "{name}" already; choose another name.')
    known[name] = make
    plugins.note(kind, name, module)
