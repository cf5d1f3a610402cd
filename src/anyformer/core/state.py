"""What decoding remembers, behind one interface: append, select(rows), mark()/rewind(), detach().

A `State` holds one memory a layer: the keys and values of the past, or those of the encoder, computed once.
"""

from __future__ import annotations

import copy
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
        self.layers: dict[str, KeyValues | Fixed] = {}
        self.real: Tensor | None = None  # [B, length]: which remembered tokens are real; None while all are
        self.length = 0
        self.memory: dict[str, Tokens] = {}  # what finished stages made, so that they need not run again

    def keys(self, path: str) -> KeyValues:
        layer = self.layers.setdefault(path, KeyValues())
        assert isinstance(layer, KeyValues)
        return layer

    def fixed(self, path: str) -> Fixed:
        layer = self.layers.setdefault(path, Fixed())
        assert isinstance(layer, Fixed)
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

    def mark(self) -> int:
        return self.length

    def rewind(self, mark: int) -> None:
        """Forget what came after the mark."""
        for layer in self.layers.values():
            layer.rewind(mark)
        self.real = None if self.real is None else self.real[:, :mark]
        self.length = mark

    def fork(self) -> State:
        """A copy that can go its own way."""
        other = copy.copy(self)
        other.layers = {path: copy.copy(layer) for path, layer in self.layers.items()}
        for layer in other.layers.values():
            layer.apply(torch.Tensor.clone)
        other.memory = dict(self.memory)
        return other

    def _apply(self, change: Callable[[Tensor], Tensor]) -> None:
        for layer in self.layers.values():
            layer.apply(change)
        self.real = None if self.real is None else change(self.real)
        self.memory = {
            stage: Tokens(change(tokens.x), None if tokens.mask is None else change(tokens.mask), grid=tokens.grid)
            for stage, tokens in self.memory.items()
        }
