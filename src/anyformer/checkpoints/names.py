"""Key tables from names: a dictionary says what Hugging Face calls each module, the model says which tensors it has.

    NAMES = {
        "decoder.inputs.words": "transformer.wte",
        **under("decoder.blocks.{i}", "transformer.h.{i}", {"self.norm": "ln_1", "self.qkv": "attn.c_attn", …}),
        "language.words": "lm_head",
        "classify.classes": "score",
    }

"{i}" is the number of a layer, "*" a head of any name. Whether a module has a bias, a network a gate, a layer
cross-attention, or the output a matrix of its own is not said: what the model has not is not asked for. A tuple is a
name, and others under which files hold the same tensor; a Name says how the stored tensor differs from ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from torch import Tensor

from anyformer import registry
from anyformer.checkpoints.key_table import Key, named_tensors
from anyformer.core.linear import FusedLinear
from anyformer.errors import ConfigError

Shape = Callable[[Any, Tensor], tuple[int, ...]]  # of the stored tensor, or of its rows, from the settings and ours


@dataclass(frozen=True)
class Name:
    """A name of Hugging Face's whose tensor is not stored as ours; see Key."""

    theirs: str
    shape: Shape | None = None
    op: Literal["same", "transpose", "reshape", "rows"] = "reshape"
    axes: tuple[int, ...] = ()
    optional: bool = False


Names = Mapping[str, "str | tuple[str, ...] | Name"]


def batch_of_one(theirs: str) -> Name:
    """Vectors that are stored as a batch of one."""
    return Name(theirs, lambda config, ours: (1, *ours.shape))


def absent(theirs: str) -> Name:
    """A tensor that files may lack and that is not written: a bias of keys, which changes no weight of attention."""
    return Name(theirs, op="same", optional=True)


def under(ours: str, theirs: str, names: Names) -> dict[str, str | tuple[str, ...] | Name]:
    """The names of a layer, below that of the whole."""
    return {f"{ours}.{mine}": _prefixed(theirs, other) for mine, other in names.items()}


def _prefixed(prefix: str, name: str | tuple[str, ...] | Name) -> str | tuple[str, ...] | Name:
    if isinstance(name, Name):
        return replace(name, theirs=f"{prefix}.{name.theirs}")
    return f"{prefix}.{name}" if isinstance(name, str) else tuple(f"{prefix}.{one}" for one in name)


def by_names(
    family: str,
    names: Names | Callable[[Any], Names],
    *,
    prefix: str = "",
    turned: bool = False,
    special: Callable[[Any], list[Key]] = lambda config: [],
    ignored: Iterable[str] = (),
    aliases: Iterable[tuple[str, Any]] = (),
) -> dict[str, Any]:
    """The parts of a KeyTable that follow from names: its keys, aliases, the keys that it ignores, and the rename.

    `prefix`: what bare models, and some files, leave out. `turned`: matrices of layers are stored transposed.
    `special`: rows that no name describes. `ignored`: patterns of further tensors that may be in files."""

    def spelled(config: Any) -> Names:
        return names(config) if callable(names) else names

    @lru_cache(maxsize=16)
    def keys(config: Any) -> list[Key]:
        return _keys(family, spelled(config), config, turned, special(config))

    def ignored_keys(config: Any) -> tuple[str, ...]:
        return (*_unused(spelled(config), keys(config)), *OLD_BUFFERS, *ignored)

    found: dict[str, Any] = {"keys": keys, "ignored_keys": ignored_keys, "aliases": tuple(aliases)}
    if prefix:
        tops = prefix_aliases(prefix, {} if callable(names) else names)
        found |= {"aliases": (*tops, *aliases), "rename": lambda config, name: _bare(config, name, f"{prefix}.")}
    return found


OLD_BUFFERS = (r"(position_ids|token_type_ids|inv_freq|masked_bias)$",)


def _bare(config: Any, name: str, prefix: str) -> str:
    return name.removeprefix(prefix) if getattr(config, "head", None) in ("base", "encoder") else name


def prefix_aliases(prefix: str, names: Names) -> tuple[tuple[str, str], ...]:
    """For files that leave out the prefix."""
    every = {one for name in names.values() for one in _every(name)}
    tops = sorted({name.split(".")[1] for name in every if name.startswith(f"{prefix}.") and "." in name})
    return ((rf"^({'|'.join(map(re.escape, tops))})(?=\.|$)", rf"{prefix}.\1"),) if tops else ()


def _every(name: str | tuple[str, ...] | Name) -> tuple[str, ...]:
    if isinstance(name, Name):
        return (name.theirs,)
    return (name,) if isinstance(name, str) else name


def _keys(family: str, names: Names, config: Any, turned: bool, special: list[Key]) -> list[Key]:
    """A row for each tensor of the model that these settings make."""
    model = registry.build_meta(registry.family(family), config)
    tensors = named_tensors(model)
    rows = {key.ours: key for key in special}
    by_tensor = {id(tensors[ours]): ours for ours in rows if ours in tensors}
    for ours, tensor in tensors.items():
        key = _row(ours, tensor, names, config, turned)
        if key is None or ours in rows:
            continue
        first = by_tensor.setdefault(id(tensor), ours)
        if first == ours:
            rows[ours] = key
        else:  # tied
            rows[first] = replace(rows[first], also=(*rows[first].also, key.theirs, *key.also))
    _check(model, {name for name, tensor in tensors.items() if name in rows or id(tensor) in by_tensor}, family)
    return list(rows.values())


def _row(ours: str, tensor: Tensor, names: Names, config: Any, turned: bool) -> Key | None:
    found = look_up(ours, names)
    if found is None:
        return None
    if isinstance(found, Name):
        shape = () if found.shape is None else found.shape(config, tensor)
        return Key(ours, found.theirs, found.op, shape, found.axes, found.optional)
    matrix = turned and tensor.dim() == 2 and ".blocks." in ours
    return Key(ours, found[0], "transpose" if matrix else "same", also=found[1:])


def look_up(ours: str, names: Names) -> tuple[str, ...] | Name | None:
    """ "decoder.blocks.3.self.out.weight" -> ("model.layers.3.self_attn.o_proj.weight",)"""
    number = re.search(r"\.blocks\.(\d+)\.", ours)
    general = ours if number is None else ours.replace(number[0], ".blocks.{i}.", 1)
    module, _, kind = general.rpartition(".")
    whole = names.get(general) or names.get(f"*.{general.partition('.')[2]}")
    found = whole or names.get(module) or names.get(f"*.{module.partition('.')[2]}")
    if found is None:
        return None
    layer, end = number[1] if number else "", "" if whole else f".{kind}"
    if isinstance(found, Name):
        return replace(found, theirs=found.theirs.replace("{i}", layer) + end)
    return tuple(one.replace("{i}", layer) + end for one in _every(found))


def _check(model: Any, named: set[str], family: str) -> None:
    """Raise ConfigError if a parameter has no name."""
    for path, module in model.named_modules():
        parent = path.rpartition(".")[0]
        for name, tensor in module._parameters.items():
            roles = [f"{parent}.{role}.{name}" for role in module.roles] if isinstance(module, FusedLinear) else []
            if tensor is not None and f"{path}.{name}" not in named and not (roles and named.issuperset(roles)):
                raise ConfigError(f"The Hugging Face form of {family} has no name for {path}.{name}.")


def _unused(names: Names, keys: list[Key]) -> tuple[str, ...]:
    """Patterns of the tensors of heads and stacks that these settings do not have."""
    stages = {key.ours.partition(".")[0] for key in keys}
    used = {name for key in keys for name in (key.theirs, *key.also)}
    found = []
    for ours, name in names.items():
        stage = ours.partition(".")[0]
        if stage in STAGES and stage in stages:
            continue
        found += [one for one in _every(name) if not any(name.startswith(one) for name in used)]
    return tuple(rf"^{re.escape(one).replace(LAYER, NUMBER)}(\.|$)" for one in found)


STAGES = ("encoder", "decoder")
LAYER, NUMBER = re.escape("{i}"), r"\d+"
