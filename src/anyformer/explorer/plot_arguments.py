"""Checks of what a caller gives to the functions of `af.plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.schema import shown


def check_arguments(path: Any, **arguments: Any) -> None:
    """Raise InputError for the first argument of a wrong type; the argument's name says which type it has."""
    if path is not None and not isinstance(path, (str, PathLike)):
        raise InputError(f"path is {shown(path)}; it must be the name of a file.")
    for name, value in arguments.items():
        rule, fits = _RULES[name]
        if not fits(value):
            raise InputError(f"{name} is {shown(value)}; it must be {rule}.")


def _is_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)


def _is_seen(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, Tensor) for one in value.values())


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(one, (int, float)) for one in value)


_TENSOR = ("a tensor", lambda value: isinstance(value, Tensor))
_TEXTS = ("a list of texts", _is_texts)
_SOME_TEXTS = ("a list of texts or None", lambda value: value is None or _is_texts(value))
_RULES = {
    **dict.fromkeys(("weights", "scores", "maps", "boxes"), _TENSOR),
    **dict.fromkeys(("source_tokens", "target_tokens", "labels"), _TEXTS),
    **dict.fromkeys(("tokens", "names"), _SOME_TEXTS),
    "seen": ("what af.look gives, a dictionary of tensors", _is_seen),
    "row": ("a whole number", lambda value: type(value) is int),
    "n": ("a whole number of 1 or more, or None", lambda value: value is None or (type(value) is int and value > 0)),
    "temperatures": ("a list of numbers", _is_numbers),
}
