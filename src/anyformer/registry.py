"""Names -> recipes. A family registers its settings, its build function and a table of sizes."""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from anyformer import plugins
from anyformer.config import Settings
from anyformer.core.init import InitConfig, initialize, materialize
from anyformer.device import choose_device, read_dtype
from anyformer.errors import ConfigError, nearest
from anyformer.model import Model
from anyformer.upgrades import renamed, upgrade_recipe


@dataclass(frozen=True)
class Family:
    """`build` makes the model with uninitialized parameters; `init` returns how to initialize them. `finetune_model`
    returns the part that is fine-tuned, if pre-training uses two models."""

    name: str
    config: type[Settings]
    build: Callable[[Any], Model]
    init: Callable[[Any], InitConfig]
    description: str
    finetune_model: Callable[[Model], Model] | None = None


@dataclass(frozen=True)
class Recipe:
    """`train_presets` are default hyperparameters of this size: {"train.lr": 1e-3, …}."""

    name: str
    family: Family
    config: Settings
    train_presets: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {}
RECIPES: dict[str, Recipe] = {}


def register(
    family: Family, sizes: Mapping[str, Settings], training: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> None:
    """Add a family, its published sizes and how some of them are best trained; a name that is taken is an error."""
    taken = [name for name in sizes if name in RECIPES] + ([family.name] if family.name in FAMILIES else [])
    if taken:
        raise ConfigError(f"There are families or recipes with these names: {', '.join(taken)}; choose others.")
    unknown = sorted(set(training) - set(sizes))
    if unknown:
        raise ConfigError(f"training has settings for unknown sizes: {', '.join(unknown)}.")
    FAMILIES[family.name] = family
    RECIPES.update({name: Recipe(name, family, config, training.get(name, {})) for name, config in sizes.items()})


def remove(name: str) -> None:
    """Remove a family and its recipes."""
    del FAMILIES[name]
    for recipe in [recipe for recipe in RECIPES if RECIPES[recipe].family.name == name]:
        del RECIPES[recipe]


def load_recipes() -> None:
    """Import every module of `recipes/` and the plugins of installed packages; each registers itself."""
    load_built_in()
    plugins.load_entry_points("recipes")


@cache
def load_built_in() -> None:
    """Import every module of `recipes/`."""
    package = importlib.import_module("anyformer.recipes")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"anyformer.recipes.{module.name}")


def recipes() -> list[str]:
    """The names that `build` takes, sorted."""
    load_recipes()
    return sorted(RECIPES)


def name_hint(name: str, known: Collection[str]) -> str:
    """The hint for a name that is not known: today's name of one that was renamed, or else the most similar name."""
    today = upgrade_recipe(name)
    return renamed(name, today) if today in known else nearest(name, known)


def _hint_or_list(name: str, known: Collection[str]) -> str:
    hint = name_hint(name, known)
    return hint if upgrade_recipe(name) in known else f"{hint} There are: {', '.join(sorted(known))}."


def recipe(name: str) -> Recipe:
    load_recipes()
    if name not in RECIPES:
        raise ConfigError(f'There is no recipe "{name}".{_hint_or_list(name, RECIPES)}')
    return RECIPES[name]


def family(name: str) -> Family:
    load_recipes()
    if name not in FAMILIES:
        raise ConfigError(f'There is no family "{name}".{_hint_or_list(name, FAMILIES)}')
    return FAMILIES[name]


def build(
    name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **overrides: object,
) -> Model:
    """A model with fresh weights, in train mode.  build("gpt2-124m", n_layers=2, device="auto", dtype="bfloat16")

    The weights are made on the device and in the type asked for (None: PyTorch's defaults). On the device "meta", also
    within `with torch.device("meta"):`, it has shapes and no weights, so that models of any size can be counted.
    """
    found = recipe(name)
    where = None if device is None else choose_device(device)
    kind = None if dtype is None else read_dtype(dtype)
    return build_config(found.family, found.config.replace(**overrides), name, where, kind).train()


def build_meta(family: Family, config: Settings) -> Model:
    """A model on the meta device: the names and shapes of its tensors, and no memory for them yet."""
    try:
        with torch.device("meta"):
            return family.build(config)
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"A {family.name} model cannot be built from these settings: {str(error)[:200]}.") from error


_WITHOUT_WEIGHTS: ContextVar[bool] = ContextVar("without_weights", default=False)


@contextmanager
def without_weights() -> Iterator[None]:
    """In the block, models that are built stay on the meta device: a dry run needs their shapes alone."""
    token = _WITHOUT_WEIGHTS.set(True)
    try:
        yield
    finally:
        _WITHOUT_WEIGHTS.reset(token)


def build_config(
    family: Family,
    config: Settings,
    name: str | None = None,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """A model with fresh weights, in eval mode."""
    model = build_meta(family, config)
    device = torch.get_default_device() if device is None else device
    if _WITHOUT_WEIGHTS.get() or device.type == "meta":
        model = model if dtype is None else model.to(dtype)
    else:
        _allocate(model, device, dtype)
        initialize(model, family.init(config))
    model.origin.recipe = name
    return model.eval()


def _allocate(model: Model, device: torch.device, dtype: torch.dtype | None) -> None:
    """Give the model memory for its weights, or raise ConfigError with the size that is not available."""
    size = sum(p.numel() * (p.element_size() if dtype is None else dtype.itemsize) for p in model.parameters())
    try:
        if device.type == "cpu" and size > _physical_memory():
            raise MemoryError  # the system may promise more than it has, and end the process later
        materialize(model, device, dtype)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f"The weights of this {model.family} model need {size / 1e9:,.1f} GB of memory, which are not available."
        ) from error


def _physical_memory() -> float:
    """Bytes of the machine's memory; infinite if the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
