"""What decoding remembers, behind one interface: append, select(rows), mark()/rewind(), detach().

A `State` holds one memory a layer: the keys and values of the past, or those of the encoder, computed once, or what a
recurrence has come to. Keys can be cut back to a length; a recurrence cannot, so a mark keeps a copy of it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.tokens import Tokens

GROWTH = 64  # tokens added to a cache when it is full


class KeyValues:
    """Keys and values of one self-attention, in buffers [B, H, capacity, d] that grow in blocks."""

    def __init__(self) -> None:
        self.length = 0
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Remember the new ones [B, H, n, d]; returns all so far."""
        last = self.length + key.shape[2]
        if torch.is_grad_enabled() and key.requires_grad:  # buffers written in place cannot carry gradients
            self.key = key if self.key is None else torch.cat([self.key[:, :, : self.length], key], dim=2)
            self.value = value if self.value is None else torch.cat([self.value[:, :, : self.length], value], dim=2)
        else:
            self.key = _room(self.key, key, last, self.length)
            self.value = _room(self.value, value, last, self.length)
            self.key[:, :, self.length : last] = key
            self.value[:, :, self.length : last] = value
        self.length = last
        return self.key[:, :, :last], self.value[:, :, :last]

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.key = None if self.key is None else change(self.key)
        self.value = None if self.value is None else change(self.value)

    def rewind(self, length: int) -> None:
        self.length = length


class Fixed:
    """Keys and values of one cross-attention: those of the encoder, computed once."""

    length = 0

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.key = None if self.key is None else change(self.key)
        self.value = None if self.value is None else change(self.value)

    def rewind(self, length: int) -> None:
        """The encoder's keys do not grow."""


class Held(dict[str, Tensor]):
    """What a recurrent part carries along, by name, batch first. A step replaces tensors and never writes into one."""

    length = 0

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.update({name: change(tensor) for name, tensor in self.items()})


class Mark:
    """A place to come back to. It follows the rows when they are reordered, for as long as somebody keeps it."""

    def __init__(self, length: int, held: dict[str, Held]) -> None:
        self.length = length
        self.held = held

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        for tensors in self.held.values():
            tensors.apply(change)


def _room(buffer: Tensor | None, like: Tensor, needed: int, used: int) -> Tensor:
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    capacity = -(-max(needed, used + used // 2) // GROWTH) * GROWTH
    larger = like.new_zeros(*like.shape[:2], capacity, like.shape[3])
    if buffer is not None:
        larger[:, :, :used] = buffer[:, :, :used]
    return larger


class State:
    """Everything a model remembers between two steps of decoding."""

    def __init__(self) -> None:
        self.layers: dict[str, KeyValues | Fixed | Held] = {}
        self.real: Tensor | None = None  # [B, length]: which remembered tokens are real; None while all are
        self.length = 0
        self.memory: dict[str, Tokens] = {}  # what finished stages made, so that they need not run again
        self.marks: weakref.WeakSet[Mark] = weakref.WeakSet()

    def keys(self, path: str) -> KeyValues:
        layer = self.layers.setdefault(path, KeyValues())
        assert isinstance(layer, KeyValues)
        return layer

    def fixed(self, path: str) -> Fixed:
        layer = self.layers.setdefault(path, Fixed())
        assert isinstance(layer, Fixed)
        return layer

    def held(self, path: str) -> Held:
        layer = self.layers.setdefault(path, Held())
        assert isinstance(layer, Held)
        return layer

    def advance(self, mask: Tensor | None, batch: int, n: int, device: torch.device) -> None:
        """Note n more tokens a row; `mask` [B, n] says which are real."""
        if mask is not None or self.real is not None:
            past = self.real
            if past is None:
                past = torch.ones(batch, self.length, dtype=torch.bool, device=device)
            now = mask if mask is not None else torch.ones(batch, n, dtype=torch.bool, device=device)
            self.real = torch.cat([past, now], dim=1)
        self.length += n

    def select(self, rows: Tensor) -> None:
        """Keep or repeat rows, as beam search reorders its hypotheses: rows [B'] of old row numbers."""
        self._apply(lambda x: x.index_select(0, rows))

    def detach(self) -> None:
        """Cut the gradient to the past."""
        self._apply(torch.Tensor.detach)

    def mark(self) -> Mark:
        held = {path: copy.copy(layer) for path, layer in self.layers.items() if isinstance(layer, Held)}
        mark = Mark(self.length, held)
        self.marks.add(mark)
        return mark

    def rewind(self, mark: Mark) -> None:
        """Forget what came after the mark."""
        for path, layer in self.layers.items():
            if isinstance(layer, Held):
                layer.clear()
                layer.update(mark.held.get(path, {}))
            else:
                layer.rewind(mark.length)
        self.real = None if self.real is None else self.real[:, : mark.length]
        self.length = mark.length

    def fork(self) -> State:
        """A copy that can go its own way."""
        other = copy.copy(self)
        other.layers = {path: copy.copy(layer) for path, layer in self.layers.items()}
        for layer in other.layers.values():
            layer.apply(torch.Tensor.clone)
        other.memory = dict(self.memory)
        other.marks = weakref.WeakSet()
        return other

    def _apply(self, change: Callable[[Tensor], Tensor]) -> None:
        for remembered in (*self.layers.values(), *self.marks):
            remembered.apply(change)
        self.real = None if self.real is None else change(self.real)
        self.memory = {
            stage: Tokens(
                change(tokens.x),
                None if tokens.mask is None else change(tokens.mask),
                code=None if tokens.code is None else change(tokens.code.expand(tokens.x.shape[0], -1, -1)),
                grid=tokens.grid,
                summary=None if tokens.summary is None else change(tokens.summary),
            )
            for stage, tokens in self.memory.items()
        }

    def shorten(self, length: int) -> bool:
        """Forget all but the first `length` tokens; False, and nothing done, where a recurrence cannot: rewind then."""
        if any(isinstance(layer, Held) for layer in self.layers.values()):
            return False
        self.rewind(Mark(length, {}))
        return True
