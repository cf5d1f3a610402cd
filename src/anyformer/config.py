"""Settings: frozen, keyword-only dataclasses, checked when they are made, to JSON and back.

@dataclass(frozen=True, kw_only=True)
class GPT2(Settings):
    n_layers: int = 12

GPT2(n_layers=2).replace(n_heads=4).to_json()
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self

from anyformer.errors import ConfigError, nearest


class Settings:
    """Base of every configuration. Subclasses are frozen dataclasses; their own rules stand in `check`."""

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if not _fits(value, hint):
                raise ConfigError(f"{type(self).__name__}.{name} is {value!r}; it takes {_spell(hint)}.")
            if name.endswith(("dropout", "drop_path", "layer_drop")) and isinstance(value, float):
                self.require(0 <= value < 1, f"{name} is {value}; it must be from 0 to below 1.")
        self.check()

    def check(self) -> None:
        """Raise ConfigError for values that contradict each other."""

    @classmethod
    def names(cls) -> list[str]:
        return list(_hints(cls))

    @classmethod
    def hint(cls, name: str) -> Any:
        """The type of a field."""
        return _hints(cls)[name]

    @classmethod
    def shape(cls, name: str, value: Any) -> Any:
        """What JSON gives, in the form that a field wants; ValueError, with what it takes, where it does not fit."""
        shaped = _shape(value, cls.hint(name))
        if not _fits(shaped, cls.hint(name)):
            raise ValueError(_spell(cls.hint(name)))
        return shaped

    def replace(self, **overrides: Any) -> Self:
        """A copy with some fields changed; a name that no field has is an error with the nearest one."""
        for name in overrides:
            if name not in self.names():
                raise ConfigError(
                    f'{type(self).__name__} has no field "{name}".{nearest(name, self.names())}'
                    f" It has: {', '.join(self.names())}."
                )
        fields = {name: getattr(self, name) for name in self.names()}
        return type(self)(**{**fields, **{n: _shape(v, _hints(type(self))[n]) for n, v in overrides.items()}})

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.names()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        unknown = [name for name in data if name not in cls.names()]
        if unknown:
            raise ConfigError(
                f'{cls.__name__} has no field "{unknown[0]}".{nearest(unknown[0], cls.names())}'
                f" It has: {', '.join(cls.names())}."
            )
        return cls(**{name: _shape(value, _hints(cls)[name]) for name, value in data.items()})

    def require(self, holds: bool, why: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {why}")


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    """The types of a class's fields, looked up once."""
    if cls not in _HINTS:
        types_of = typing.get_type_hints(cls)
        _HINTS[cls] = {field.name: types_of[field.name] for field in dataclasses.fields(cls)}
    return _HINTS[cls]


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _shape(value: Any, hint: Any) -> Any:
    """What JSON gives, in the form that the field wants: lists become tuples, objects become Settings."""
    options = typing.get_args(hint) if _union(hint) else (hint,)
    for option in options:
        if isinstance(value, Mapping) and isinstance(option, type) and issubclass(option, Settings):
            return option.from_json(value)
        if isinstance(value, list) and typing.get_origin(option) is tuple:
            return tuple(_shape(item, typing.get_args(option)[0]) for item in value)
        if option is float and type(value) is int:
            return float(value)
    return value


def parse(text: str, hint: Any) -> Any:
    """A value typed as text, as the field's type wants it; ValueError, with what it takes, where it cannot be.

    parse("20_000", int) -> 20000;  parse("none", int | None) -> None;  parse("a,b", tuple[str, ...]) -> ("a", "b")
    """
    options = sorted(typing.get_args(hint), key=lambda one: one is not type(None)) if _union(hint) else [hint]
    for option in options:
        try:
            value = _parse_one(text, option)
        except ValueError:
            continue
        if _fits(value, option):
            return value
    raise ValueError(_spell(hint))


def _parse_one(text: str, hint: Any) -> Any:
    if hint is type(None):
        return None if text.lower() in ("none", "null", "") else text
    if hint is bool:
        return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(
            text.lower(), text
        )
    if hint is int:
        return int(float(text)) if float(text).is_integer() and "e" in text.lower() else int(text)  # 1e6 is whole
    if hint is float:
        return float(text)
    if typing.get_origin(hint) is tuple:
        pieces = [piece.strip() for piece in text.strip("[]()").split(",")]
        return tuple(parse(piece.strip("'\""), typing.get_args(hint)[0]) for piece in pieces if piece)
    if typing.get_origin(hint) is dict or (isinstance(hint, type) and issubclass(hint, Settings)):
        return _shape(json.loads(text), hint)
    if typing.get_origin(hint) is Literal:
        return next((value for value in typing.get_args(hint) if str(value) == text), text)
    return text


def _union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if hint is Any:
        return True
    if _union(hint):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin is tuple:
        inner = typing.get_args(hint)
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spell(hint: Any) -> str:
    if _union(hint):
        return " or ".join(_spell(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(value) for value in typing.get_args(hint))
    return str(getattr(hint, "__name__", hint)) if typing.get_origin(hint) is None else str(hint)
