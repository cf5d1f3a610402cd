"""Swap a module's class in place for a faster subclass, and restore it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


def swap(module: nn.Module, faster: type[nn.Module]) -> None:
    """Give the module a faster class. Its parameters, their names, hooks, taps and identity do not change."""
    plain = type(module)
    assert issubclass(faster, plain), f"{faster.__name__} is no {plain.__name__}"
    module.__dict__["_plain"] = (*module.__dict__.get("_plain", ()), plain)
    module.__class__ = faster


def restore(module: nn.Module) -> None:
    """Undo the last swap."""
    *before, plain = module.__dict__.pop("_plain")
    if before:
        module.__dict__["_plain"] = tuple(before)
    module.__class__ = plain


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The class with which the module was built."""
    swaps = module.__dict__.get("_plain")
    return type(module) if swaps is None else swaps[0]


@contextmanager
def swapped(pairs: Iterable[tuple[nn.Module, type[nn.Module]]]) -> Iterator[None]:
    """Context in which each module has its faster class, while a step is captured, compiled or trained."""
    changed = []
    try:
        for module, faster in pairs:
            swap(module, faster)
            changed.append((module, faster))
        yield
    finally:
        for module, faster in reversed(changed):
            if type(module) is faster:  # a nested rewrite may have restored it already
                restore(module)
