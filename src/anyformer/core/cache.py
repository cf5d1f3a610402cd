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

from anyformer.core.masks import Causal, Mask, Padding, PositionMask, ShiftedMask
from anyformer.core.tokens import Tokens

GROW_BY = 64  # tokens added to a cache when it is full
PAST = "past"  # the one tensor of a `RecurrentState` that has a column a token [B, columns, d], as keys do


class SelfAttentionCache:
    """Keys and values of one self-attention, in buffers [B, H, capacity, d] that grow in blocks.

    `length` counts every token that came, `first` those that were forgotten again: behind a window of `span` tokens
    nothing is looked at any more.
    """

    def __init__(self, span: int | None = None) -> None:
        self.span = span
        self.length = self.first = 0
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    @property
    def num_held(self) -> int:
        return self.length - self.first

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Remember the new ones [B, H, n, d]; returns all that are held."""
        held = self.num_held
        last = held + key.shape[2]
        if torch.is_grad_enabled() and key.requires_grad:  # buffers written in place cannot carry gradients
            self.key = key if self.key is None else torch.cat([self.key[:, :, :held], key], dim=2)
            self.value = value if self.value is None else torch.cat([self.value[:, :, :held], value], dim=2)
        else:
            self.key = _room(self.key, key, last, held)
            self.value = _room(self.value, value, last, held)
            self.key[:, :, held:last] = key
            self.value[:, :, held:last] = value
        self.length += key.shape[2]
        return self.key[:, :, :last], self.value[:, :, :last]

    def drop_before(self, before: int) -> None:
        """Let go of the tokens before this one."""
        kept, n = slice(before - self.first, self.num_held), self.length - before

        def move(buffer: Tensor) -> Tensor:
            smaller = buffer.new_zeros(*buffer.shape[:2], n + 2 * GROW_BY, buffer.shape[3])
            smaller[:, :, :n] = buffer[:, :, kept]
            return smaller

        self.apply(move)
        self.first = before

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.key = None if self.key is None else change(self.key)
        self.value = None if self.value is None else change(self.value)

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        """`moved`, where it is known, are the rows that do not continue themselves: only those are copied, and only
        as far as they are filled.
        """
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
            larger = buffer.new_zeros(len(rows), *buffer.shape[1:])
            larger[:, :, :held] = filled.index_select(0, rows)
            return larger

        self.apply(reorder)

    def rewind(self, length: int) -> None:
        self.length = length


class CrossAttentionCache:
    """Keys and values of one cross-attention: those of the encoder, computed once."""

    length = 0

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.key = None if self.key is None else change(self.key)
        self.value = None if self.value is None else change(self.value)

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        self.apply(lambda x: x.index_select(0, rows))

    def rewind(self, length: int) -> None:
        """The encoder's keys do not grow."""


class RecurrentState(dict[str, Tensor]):
    """What a recurrent part carries along, by name, batch first. A step replaces tensors and never writes into one."""

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        self.update({name: change(tensor) for name, tensor in self.items()})

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        self.apply(lambda x: x.index_select(0, rows))


class CacheMark:
    """A place to come back to. It follows the rows when they are reordered, for as long as somebody keeps it."""

    def __init__(self, length: int, held: dict[str, RecurrentState]) -> None:
        self.length = length
        self.recurrent = held

    def apply(self, change: Callable[[Tensor], Tensor]) -> None:
        for tensors in self.recurrent.values():
            tensors.apply(change)

    def reorder(self, rows: Tensor, moved: Tensor | None) -> None:
        self.apply(lambda x: x.index_select(0, rows))


def _room(buffer: Tensor | None, like: Tensor, needed: int, used: int) -> Tensor:
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    capacity = -(-max(needed, used + used // 2) // GROW_BY) * GROW_BY
    larger = like.new_zeros(*like.shape[:2], capacity, like.shape[3])
    if buffer is not None:
        larger[:, :, :used] = buffer[:, :, :used]
    return larger


class Cache:
    """Everything a model remembers between two steps of decoding."""

    def __init__(self) -> None:
        self.layers: dict[str, SelfAttentionCache | CrossAttentionCache | RecurrentState] = {}
        self.real: Tensor | None = None  # [B, length]: which remembered tokens are real; None while all are
        self.length = 0
        self.uncounted = 0  # tokens in front of a text (an image's) that its positions do not count
        self.numbered = False  # whether some layer's mask goes by the numbers of tokens
        self.encoder_tokens: dict[str, Tokens] = {}  # what finished stages made, so that they need not run again
        self.marks: weakref.WeakSet[CacheMark] = weakref.WeakSet()
        self._places: Tensor | None = None  # [B, length] positions without padding, as of the last `advance`
        self.checked = False  # whether what was made of the weights is known to hold as long as this state is in use

    def self_attention(self, path: str, span: int | None = None) -> SelfAttentionCache:
        """`span`: how many tokens before a query it looks at, where that is bounded."""
        layer = self.layers.setdefault(path, SelfAttentionCache(span))
        assert isinstance(layer, SelfAttentionCache)
        return layer

    def cross_attention(self, path: str) -> CrossAttentionCache:
        layer = self.layers.setdefault(path, CrossAttentionCache())
        assert isinstance(layer, CrossAttentionCache)
        return layer

    def recurrent(self, path: str) -> RecurrentState:
        layer = self.layers.setdefault(path, RecurrentState())
        assert isinstance(layer, RecurrentState)
        return layer

    def num_tokens(self) -> int | Tensor:
        """How many real tokens are remembered: one number, or one a row [B, 1]."""
        return self.length if self.real is None else self.real.sum(dim=1, keepdim=True)

    def mask(self, own: Mask, n_query: int, n_keys: int) -> Mask:
        """What the last `n_query` tokens may look at among the `n_keys` that a layer holds: what the family allows
        (`own`) and is real. Where slots of the past are padding, distances are counted without them.
        """
        self.numbered |= own.by_position
        if self.real is None:
            return ShiftedMask(own, self.length - n_keys) if own.by_position and n_keys < self.length else own
        real = Padding(self.real[:, self.real.shape[1] - n_keys :])  # a bounded memory has the last ones only
        near = n_keys == n_query and not own.by_position
        if near or all(isinstance(part, Causal) for part in own.parts):
            return own & real
        if self._places is None:
            self._places = self.real.cumsum(dim=1) - 1
        return PositionMask(own, self._places[:, self.real.shape[1] - n_keys :]) & real

    def advance(self, mask: Tensor | None, batch: int, n: int, device: torch.device) -> None:
        """Note n more tokens a row; `mask` [B, n] says which are real."""
        self._forget()
        self._places = None
        if mask is not None or self.real is not None:
            past = self.real
            if past is None:
                past = torch.ones(batch, self.length, dtype=torch.bool, device=device)
            now = mask if mask is not None else torch.ones(batch, n, dtype=torch.bool, device=device)
            self.real = torch.cat([past, now], dim=1)
        self.length += n

    def _forget(self) -> None:
        """Windows keep only what a later query can look at, and what a mark may come back to."""
        now = min((mark.length for mark in self.marks), default=self.length)
        for layer in self.layers.values():
            if isinstance(layer, SelfAttentionCache) and layer.span is not None:
                spare = now - layer.first - layer.span
                if spare >= GROW_BY:  # seldom enough that moving the rest costs little
                    before = now - layer.span if self.real is None else self._last_real(now, layer.span)
                    if before - layer.first >= GROW_BY // 2:
                        layer.drop_before(before)

    def _last_real(self, now: int, span: int) -> int:
        """The slot from which on every row has `span` real tokens before `now`, or all it has."""
        assert self.real is not None
        after = self.real[:, :now].flip(1).cumsum(dim=1)  # real tokens from a slot on, counted from the end
        wanted = after[:, -1:].clamp(max=span)
        return now - int((after < wanted).sum(dim=1).max()) - 1

    def reorder(self, rows: Tensor, memory: bool = True) -> None:
        """Keep or repeat rows, as beam search reorders its hypotheses: rows [B'] of old row numbers.

        With `memory` off, what stands fixed (the encoder's tokens, keys and values) stays as it is: all beams of a
        source look at the same.
        """
        moved = self._moved(rows)
        for layer in (*self.layers.values(), *self.marks):
            if memory or not isinstance(layer, CrossAttentionCache):
                layer.reorder(rows, moved)
        self.real = None if self.real is None else self.real.index_select(0, rows)
        if memory:
            self.encoder_tokens = {
                stage: _change(tokens, lambda x: x.index_select(0, rows))
                for stage, tokens in self.encoder_tokens.items()
            }

    def _moved(self, rows: Tensor) -> Tensor | None:
        """Rows that do not continue themselves; on a GPU looking would wait for it."""
        sizes = {
            layer.key.shape[0]
            for layer in self.layers.values()
            if isinstance(layer, SelfAttentionCache) and layer.key is not None
        }
        if rows.is_cuda or sizes != {len(rows)}:
            return None
        return (rows != torch.arange(len(rows))).nonzero().squeeze(1)

    def detach(self) -> None:
        """Cut the gradient to the past."""
        self._apply(torch.Tensor.detach)

    def mark(self) -> CacheMark:
        held = {path: copy.copy(layer) for path, layer in self.layers.items() if isinstance(layer, RecurrentState)}
        mark = CacheMark(self.length, held)
        self.marks.add(mark)
        return mark

    def rewind(self, mark: CacheMark) -> None:
        """Forget what came after the mark."""
        for path, layer in self.layers.items():
            if isinstance(layer, RecurrentState):
                layer.clear()
                layer.update(mark.recurrent.get(path, {}))
            else:
                layer.rewind(mark.length)
        self.real = None if self.real is None else self.real[:, : mark.length]
        self.length = mark.length

    def clone(self) -> Cache:
        """A copy that can go its own way."""
        other = copy.copy(self)
        other.layers = {path: copy.copy(layer) for path, layer in self.layers.items()}
        for layer in other.layers.values():
            layer.apply(torch.Tensor.clone)
        other.encoder_tokens = dict(self.encoder_tokens)
        other.marks = weakref.WeakSet()
        return other

    def _apply(self, change: Callable[[Tensor], Tensor]) -> None:
        for remembered in (*self.layers.values(), *self.marks):
            remembered.apply(change)
        self.real = None if self.real is None else change(self.real)
        self.encoder_tokens = {stage: _change(tokens, change) for stage, tokens in self.encoder_tokens.items()}

    def truncate(self, length: int) -> bool:
        """Forget all but the first `length` tokens; False, and nothing done, where a recurrence cannot: rewind then."""
        if any(isinstance(layer, RecurrentState) for layer in self.layers.values()):
            return False
        self.rewind(CacheMark(length, {}))
        return True


def _change(tokens: Tokens, change: Callable[[Tensor], Tensor]) -> Tokens:
    return Tokens(
        change(tokens.x),
        None if tokens.mask is None else change(tokens.mask),
        pos_embed=None if tokens.pos_embed is None else change(tokens.pos_embed.expand(tokens.x.shape[0], -1, -1)),
        grid=tokens.grid,
        summary=None if tokens.summary is None else change(tokens.summary),
    )
