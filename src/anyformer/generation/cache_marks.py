"""Places in a cache to come back to, and copies of a cache.

Keys can be truncated; a recurrent state cannot, so a mark stores a copy of it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.core.cache import Cache, RecurrentState, SelfAttentionCache


class CacheMark:
    """A position to rewind to. It follows the rows when they are reordered, as long as it is referenced."""

    def __init__(self, length: int, recurrent: dict[str, RecurrentState]) -> None:
        self.length, self.recurrent = length, recurrent

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        for state in self.recurrent.values():
            state.apply(change)

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        self.apply(lambda x: x.index_select(0, rows))


def set_mark(state: Cache) -> CacheMark:
    """Mark the current end of the cache."""
    states = {path: copy.copy(layer) for path, layer in state.layers.items() if isinstance(layer, RecurrentState)}
    mark = CacheMark(state.length, states)
    state.marks.add(mark)
    return mark


def rewind(state: Cache, mark: CacheMark) -> None:
    """Drop everything after the mark."""
    for path, layer in state.layers.items():
        if isinstance(layer, RecurrentState):
            layer.clear()
            layer.update(mark.recurrent.get(path, {}))
        elif isinstance(layer, SelfAttentionCache):
            layer.length = mark.length
    state.real = None if state.real is None else state.real[:, : mark.length]
    state.length = mark.length


def truncate(state: Cache, length: int) -> bool:
    """Keep only the first `length` tokens. Return False and do nothing if a recurrent layer cannot be truncated."""
    if any(isinstance(layer, RecurrentState) for layer in state.layers.values()):
        return False
    rewind(state, CacheMark(length, {}))
    return True


def clone(state: Cache) -> Cache:
    """An independent copy, without marks."""
    other = copy.copy(state)
    other.layers = {path: copy.copy(layer) for path, layer in state.layers.items()}
    for layer in other.layers.values():
        layer.apply(torch.Tensor.clone)
    other.encoder_tokens, other.marks = dict(state.encoder_tokens), weakref.WeakSet()
    return other
