"""The cache of a model between decoding steps, with one entry per layer, by the layer's name.

Self-attention stores the keys and values of past tokens, cross-attention those of the encoder, a recurrent layer its
state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from anyformer.core.masks import Causal, Mask, Padding, PositionMask, ShiftedMask
from anyformer.core.tokens import Tokens

GROW_BY = 64  # tokens added to a buffer when it is full
PAST = "past"  # the tensor of a `RecurrentState` that has one column per token [B, columns, d], as keys do

Entry = TypeVar("Entry", bound="SelfAttentionCache | CrossAttentionCache | RecurrentState")


class KeyValueEntry:
    """Keys and values of one attention layer [B, G, K, d]."""

    key: Tensor | None = None
    value: Tensor | None = None

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.key is not None and self.value is not None:
            self.key, self.value = change(self.key), change(self.value)

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        self.apply(lambda x: x.index_select(0, rows))


class CrossAttentionCache(KeyValueEntry):
    """Keys and values of the encoder's tokens, computed once."""


class SelfAttentionCache(KeyValueEntry):
    """Keys and values of past tokens, in buffers that grow in blocks.

    `length` counts every token that came; the `first` of them were dropped, since no query reads further back than
    `span` tokens (None: any number).
    """

    def __init__(self, span: int | None = None) -> None:
        self.span = span
        self.length = self.first = 0

    @property
    def num_held(self) -> int:
        return self.length - self.first

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys and values [B, G, n, d]; returns all that are held."""
        held = self.num_held
        self.key, self.value = _append(self.key, key, held), _append(self.value, value, held)
        self.length += key.shape[2]
        return self.key[:, :, : self.num_held], self.value[:, :, : self.num_held]

    def drop_before(self, before: int) -> None:
        """Drop the tokens before this one."""
        kept = slice(before - self.first, self.num_held)
        self.apply(lambda buffer: _append(None, buffer[:, :, kept], 0))
        self.first = before

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        """`moved`, if known, are the rows that do not continue themselves: only those are copied."""
        held = self.num_held

        def reorder(buffer: Tensor) -> Tensor:
            if buffer.requires_grad:
                return buffer.index_select(0, rows)
            filled = buffer[:, :, :held]
            if moved is not None:
                filled.index_copy_(0, moved, filled.index_select(0, rows[moved]))
                return buffer
            if len(rows) == len(buffer):
                filled.copy_(filled.index_select(0, rows))
                return buffer
            return _append(None, filled.index_select(0, rows), 0)

        self.apply(reorder)


def _append(buffer: Tensor | None, new: Tensor, held: int) -> Tensor:
    """The buffer with `new` after the `held` tokens that are in it; a larger one if it is full."""
    last = held + new.shape[2]
    if torch.is_grad_enabled() and new.requires_grad:  # buffers written in place cannot carry gradients
        return new if buffer is None else torch.cat([buffer[:, :, :held], new], dim=2)
    if buffer is None or buffer.shape[2] < last:
        capacity = -(-max(last, held + held // 2) // GROW_BY) * GROW_BY
        larger = new.new_zeros(*new.shape[:2], capacity, new.shape[3])
        if buffer is not None:
            larger[:, :, :held] = buffer[:, :, :held]
        buffer = larger
    buffer[:, :, held:last] = new
    return buffer


class RecurrentState(dict[str, Tensor]):
    """Tensors that a recurrent layer keeps, by name, batch first. A step replaces tensors and never writes into one."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.update({name: change(tensor) for name, tensor in self.items()})

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        self.apply(lambda x: x.index_select(0, rows))


class Cache:
    """Everything that a model caches between two decoding steps."""

    def __init__(self) -> None:
        self.layers: dict[str, SelfAttentionCache | CrossAttentionCache | RecurrentState] = {}
        self.real: Tensor | None = None  # [B, length], True = a real token; None: all are real
        self.length = 0
        self.uncounted = 0  # tokens before the text (an image's) that its positions do not count
        self.numbered = False  # whether some layer's mask depends on the positions of tokens
        self.encoder_tokens: dict[str, Tokens] = {}  # outputs of finished stages, so that they need not run again
        self.marks: weakref.WeakSet[Any] = weakref.WeakSet()  # places to come back to (generation/cache_marks.py)
        self._places: Tensor | None = None  # [B, length] positions without padding, since the last `advance`
        self.checked = False  # whether the packed weights were checked when decoding began

    def self_attention(self, path: str, span: int | None = None) -> SelfAttentionCache:
        return self._entry(path, SelfAttentionCache, span)

    def cross_attention(self, path: str) -> CrossAttentionCache:
        return self._entry(path, CrossAttentionCache)

    def recurrent(self, path: str) -> RecurrentState:
        return self._entry(path, RecurrentState)

    def _entry(self, path: str, kind: type[Entry], *given: int | None) -> Entry:
        if path not in self.layers:
            self.layers[path] = kind(*given)
        entry = self.layers[path]
        assert isinstance(entry, kind)
        return entry

    def num_tokens(self) -> int | Tensor:
        """The number of real tokens cached: one number, or one per row [B, 1]."""
        return self.length if self.real is None else self.real.sum(dim=1, keepdim=True)

    def mask(self, own: Mask, n_query: int, n_keys: int) -> Mask:
        """The mask of the last `n_query` tokens for the `n_keys` of a layer: the family's mask (`own`) and the padding.
        Distances do not count padding."""
        self.numbered |= own.by_position
        if self.real is None:
            return ShiftedMask(own, self.length - n_keys) if own.by_position and n_keys < self.length else own
        real = Padding(self.real[:, self.real.shape[1] - n_keys :])  # a bounded cache has the last ones only
        near = n_keys == n_query and not own.by_position
        if near or all(isinstance(part, Causal) for part in own.parts):
            return own & real
        if self._places is None:
            self._places = self.real.cumsum(dim=1) - 1
        return PositionMask(own, self._places[:, self.real.shape[1] - n_keys :]) & real

    def advance(self, mask: Tensor | None, batch: int, n: int, device: torch.device) -> None:
        """Add n tokens to each row; `mask` [B, n] marks the real ones."""
        self._drop_unreachable()
        self._places = None
        if mask is not None or self.real is not None:
            past, now = self.real, mask
            past = torch.ones(batch, self.length, dtype=torch.bool, device=device) if past is None else past
            now = torch.ones(batch, n, dtype=torch.bool, device=device) if now is None else now
            self.real = torch.cat([past, now], dim=1)
        self.length += n

    def _drop_unreachable(self) -> None:
        """Drop tokens outside of all windows that neither a later query nor a mark can read."""
        now = min((mark.length for mark in self.marks), default=self.length)
        for layer in self.layers.values():
            if not isinstance(layer, SelfAttentionCache) or layer.span is None:
                continue
            if now - layer.first - layer.span >= GROW_BY:  # rarely, so that moving the rest costs little
                before = now - layer.span if self.real is None else self._last_real(now, layer.span)
                if before - layer.first >= GROW_BY // 2:
                    layer.drop_before(before)

    def _last_real(self, now: int, span: int) -> int:
        """The column from which every row has `span` real tokens before `now`, or all of its tokens."""
        assert self.real is not None
        after = self.real[:, :now].flip(1).cumsum(dim=1)  # real tokens from a column on, counted from the end
        wanted = after[:, -1:].clamp(max=span)
        return now - int((after < wanted).sum(dim=1).max()) - 1

    def reorder(self, rows: Tensor, memory: bool = True) -> None:
        """Keep or repeat rows, as beam search reorders its hypotheses: rows [B'] of old row numbers.

        With `memory` off, the encoder's tokens, keys and values stay: all beams of a source read the same.
        """
        moved = self._moved(rows)
        for layer in (*self.layers.values(), *self.marks):
            if memory or not isinstance(layer, CrossAttentionCache):
                layer.reorder(rows, moved)
        self.real = None if self.real is None else self.real.index_select(0, rows)
        if memory:
            self._change_encoder_tokens(lambda x: x.index_select(0, rows))

    def _moved(self, rows: Tensor) -> Tensor | None:
        """Rows that do not continue themselves; None on a GPU, where reading them would synchronize."""
        layers = [layer for layer in self.layers.values() if isinstance(layer, SelfAttentionCache)]
        if rows.is_cuda or {layer.key.shape[0] for layer in layers if layer.key is not None} != {len(rows)}:
            return None
        return (rows != torch.arange(len(rows))).nonzero().squeeze(1)

    def detach(self) -> None:
        """Stop gradients to the past."""
        for entry in (*self.layers.values(), *self.marks):
            entry.apply(torch.Tensor.detach)
        self._change_encoder_tokens(torch.Tensor.detach)

    def _change_encoder_tokens(self, change: Callable[[Tensor], Tensor]) -> None:
        self.encoder_tokens = {stage: tokens.map(change) for stage, tokens in self.encoder_tokens.items()}
