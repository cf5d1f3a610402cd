"""Edits of a built model that a folder cannot hold: it keeps the model's settings and tensors, and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from anyformer import registry
from anyformer.core.wrapper import Wrapper
from anyformer.errors import ConfigError
from anyformer.model import Model

# Attributes that say how a model is run, trained or observed: with others it gives the same numbers.
FREE = re.compile(
    r"_.*|packed_rows|n_first|on_use|auto_optimize|training|taps|watch|origin|points|gradient_checkpointing|(.*_)?(dropout|drop_path|drop)"
)


def check_edits(model: Model) -> None:
    """Raise ConfigError if the model is not what its settings build: a folder would lose what was set by hand."""
    parts, built = _parts(model), _parts(registry.build_meta(registry.family(model.family), model.config))
    for path in dict.fromkeys((*built, *parts)):  # outer parts come before those inside them
        now, before = parts.get(path), built.get(path)
        if now is None or before is None or _kind(now) is not _kind(before):
            raise _error(path, None if now is None else _kind(now), None if before is None else _kind(before))
        was = vars(before)
        for name, value in vars(now).items():
            if not FREE.fullmatch(name) and not _equal(value, was.get(name)) and not _is_leaked(now, name):
                raise _error(f"{path.strip()}.{name}".lstrip("."), value, was.get(name))
    _check_tensors(parts, built)


def _is_leaked(part: nn.Module, name: str) -> bool:
    """Whether a wrapper only got the attribute of what it wraps: torch.export writes attributes back by path, and both
    have one path."""
    return isinstance(part, Wrapper) and part.inner is not None and name in vars(part.inner)


def _error(path: str, now: Any, before: Any) -> ConfigError:
    return ConfigError(
        f"{path.strip() or 'the model'} is {_spell(now)}, set by hand; the model's settings make it"
        f" {_spell(before)}, and a folder holds only those. Set it back, or build the model with other settings."
    )


def _parts(model: Model) -> dict[str, nn.Module]:
    """Modules by path and, since a wrapper has the path of what it wraps, by depth of wrapping."""
    found: dict[str, nn.Module] = {}
    for path, part in model.named_modules():
        if not getattr(part, "of_task", False):
            while path in found:
                path += " "
            found[path] = part
    return found


def _kind(part: nn.Module) -> type:
    """A module's class; the one that FSDP makes of it is the same."""
    plain = part.__dict__.get("_plain", (type(part),))[0]  # before anyformer.fast swapped it
    plain = plain if isinstance(part, plain) else type(part)  # see _is_leaked
    return next(kind for kind in plain.__mro__ if not kind.__module__.startswith("torch.distributed"))


def _equal(one: Any, other: Any) -> bool:
    if one is other or isinstance(one, (Tensor, nn.Module)):  # modules are compared by themselves
        return True
    if type(one) is not type(other):
        return type(one) in (int, float) and type(other) in (int, float) and bool(one == other)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one) if not FREE.fullmatch(field.name)]
        return all(_equal(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def _spell(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return str(getattr(value, "__name__", None) or f"another {type(value).__name__}")


def _check_tensors(parts: Mapping[str, nn.Module], built: Mapping[str, nn.Module]) -> None:
    """Raise ConfigError unless both have parameters and buffers of the same names and shapes, tied in the same way."""
    now, before = _tensors(parts), _tensors(built)
    for name in dict.fromkeys((*before, *now)):
        if name not in now or name not in before or now[name].shape != before[name].shape:
            raise _tensor_error(name, _spell_shape(now.get(name)), _spell_shape(before.get(name)))
    ties = _first_names(before)
    for name, first in _first_names(now).items():
        if first != ties[name]:
            raise _tensor_error(name, _spell_tie(name, first), _spell_tie(name, ties[name]))


def _tensors(parts: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{path}.{name}".lstrip("."): tensor
        for path, part in parts.items()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is not None
    }


def _first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For each name, the first name of the same tensor: its own if it is not tied to an earlier one."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def _spell_shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else f"a tensor of shape {list(tensor.shape)}"


def _spell_tie(name: str, first: str) -> str:
    return "a tensor of its own" if name == first else f"the same tensor as {first.strip()}"


def _tensor_error(name: str, now: str, before: str) -> ConfigError:
    return ConfigError(
        f"{name} is {now}; the model's settings make it {before}, and a folder can hold only what the"
        " settings make. Set it back, or build the model with other settings."
    )
