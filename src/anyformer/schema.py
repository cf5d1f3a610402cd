"""Validation of external values: settings, configs, indices, fields of GGUF files, generation options.

    check_fields(data, {"weight_map": dict[str, str]}, "model.safetensors.index.json")
    check_fields(fields, {"block_count": Annotated[int, Range(1, 10_000)]}, "model.gguf")

A schema is a type hint, or a dictionary of them: int, float, bool, str, None, list[…], tuple[…, ...], dict[str, …],
Literal, unions and Annotated with a Range, a Length or Matches. Floats must be finite; a bool is not a number.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from anyformer.errors import ConfigError, Error

SHOWN = 80  # characters of a wrong value that an error repeats


@dataclass(frozen=True)
class Range:
    """Bounds of a number: `least` and `most` are inclusive, `above` and `below` exclusive."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: Any) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = f"{self.least:,} or more" if self.least is not None else ""
        low = f"above {self.above:,}" if self.above is not None else low
        high = f"at most {self.most:,}" if self.most is not None else ""
        high = f"below {self.below:,}" if self.below is not None else high
        return " and ".join(part for part in (low, high) if part)


@dataclass(frozen=True)
class Length:
    """The allowed length of a list, an object or a text."""

    least: int = 0
    most: int = 2**31

    def holds(self, value: Any) -> bool:
        return self.least <= len(value) <= self.most

    def __str__(self) -> str:
        return f"{self.least:,} to {self.most:,} long" if self.least != self.most else f"{self.least:,} long"


@dataclass(frozen=True)
class Matches:
    """A regular expression that a whole text must match."""

    pattern: str

    def holds(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return f"of the form {self.pattern}"


def check_fields(
    data: Mapping[str, Any], schema: Mapping[str, Any], where: str, *, error: type[Error] = ConfigError
) -> None:
    """An error that names the first field whose value does not fit; fields that are not there are not asked for."""
    for name, hint in schema.items():
        if name in data:
            check_value(name, data[name], hint, where, error=error)


def check_value(name: str, value: Any, hint: Any, where: str = "", *, error: type[Error] = ConfigError) -> None:
    if not fits(value, hint):
        before = f"{where}: " if where else ""
        raise error(f'{before}"{name}" is {shown(value)}; it must be {spell(hint)}.')


def shown(value: Any) -> str:
    """A value as an error repeats it: on one line, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a type hint describes."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return fits(value, inner[0]) and all(rule.holds(value) for rule in inner[1:] if _applies(rule, value))
    if is_union(hint):
        return any(fits(value, option) for option in inner)
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in inner)
    if origin in (tuple, list):
        return isinstance(value, origin) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if hint in (int, float):
        return _is_number(value, hint)
    return value is None if hint in (None, type(None)) else isinstance(value, hint)


def _applies(rule: Any, value: Any) -> bool:
    """A Range is for numbers, the other rules for what has a length."""
    return isinstance(value, (int, float)) if isinstance(rule, Range) else hasattr(value, "__len__")


def _is_number(value: Any, hint: type) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, float):
        return hint is float and math.isfinite(value)
    return hint is int or abs(value) < 2**1023  # what a float can hold


def spell(hint: Any) -> str:
    """A type hint in words, for an error."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return f"{spell(inner[0])}, {', '.join(str(rule) for rule in inner[1:])}"
    if is_union(hint):
        return " or ".join(spell(option) for option in inner)
    if origin is Literal:
        return "one of " + ", ".join(repr(value) for value in inner)
    if origin in (tuple, list):
        return f"a list ({spell(inner[0])} each)"
    if origin is dict:
        return f"an object ({spell(inner[0])}: {spell(inner[1])})"
    words = {Any: "anything", int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    return "null" if hint in (None, type(None)) else words.get(hint, str(getattr(hint, "__name__", hint)))


def is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)
