"""A cache of fixed size: a decode step does the same operations each time, so that it can be captured as a CUDA graph
and replayed.

The real tokens of each row are contiguous and end at the same column, the last one written. The column index is stored
on the device, and a step increments it. Beams do not move their past: a table stores the ancestor's row of each column.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.cache import Cache, CrossAttentionCache, SelfAttentionCache
from anyformer.core.masks import Causal, Mask, StaticCacheMask, Window
from anyformer.core.tokens import Tokens
from anyformer.fast.device import HAS_TRITON
from anyformer.layers.raster import BlockLocal2D

PADDED = 32  # encoder tokens are padded to a multiple of this, so that fewer shapes are captured


class StaticLayerCache(SelfAttentionCache):
    """Keys and values in buffers [rows, heads, columns, d], written at the cache's current column."""

    def __init__(self, key: Tensor, value: Tensor, column: Tensor, fresh: list[Tensor] | None) -> None:
        super().__init__()
        self.column, self.fresh = column, fresh
        self.key, self.value = key, value

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values, unless the kernel that reads the buffers next also writes them."""
        assert self.key is not None and self.value is not None
        if self.fresh is not None:
            self.fresh[:] = [key, value]
        else:
            self.key.index_copy_(2, self.column, key)
            self.value.index_copy_(2, self.column, value)
        return self.key, self.value


def has_static_kernel(some: Tensor) -> bool:
    """Whether a kernel is available that follows a table of ancestors and writes new keys and values
    (triton_decode.py)."""
    return HAS_TRITON and some.is_cuda and some.dtype != torch.float64


def supports_static_cache(own: Mask) -> bool:
    """Whether the mask can be expressed as a contiguous run of columns, or by positions, which follow from the
    columns."""
    return all(isinstance(part, (BlockLocal2D, Causal, Window)) for part in own.parts)


class StaticCache(Cache):
    """A cache with room for `columns` tokens a row, filled by `load` from a dynamic cache."""

    def __init__(self, like: Cache, columns: int, beams: int = 1) -> None:
        super().__init__()
        grown = {path: layer for path, layer in like.layers.items() if isinstance(layer, SelfAttentionCache)}
        some = next(layer.key for layer in grown.values() if layer.key is not None)
        rows, device = some.shape[0], some.device
        self.columns, self.beams = columns, beams
        self.clock = torch.zeros(1 + rows, dtype=torch.long, device=device)  # one tensor, incremented in one operation
        self.column, self.places = self.clock[:1], self.clock[1:, None]
        self.first = torch.zeros(rows, dtype=torch.long, device=device)
        self.own = torch.arange(rows, dtype=torch.int32, device=device)[:, None]
        follows = has_static_kernel(some) and not like.numbered  # its kernel supports runs of columns only
        self.fresh: list[Tensor] | None = [] if follows else None
        self.table = self.own.repeat(1, columns) if beams > 1 and self.fresh is not None else None
        for path, layer in grown.items():
            assert layer.key is not None and layer.value is not None
            room = [x.new_zeros(rows, x.shape[1], columns, x.shape[3]) for x in (layer.key, layer.value)]
            self.layers[path] = StaticLayerCache(room[0], room[1], self.column, self.fresh)
        for path, other in like.layers.items():
            if isinstance(other, CrossAttentionCache):
                fixed = self.cross_attention(path)
                fixed.key, fixed.value = (_pad(x, 2).clone() for x in _given(other))
        self.encoder_tokens = {stage: _padded(tokens) for stage, tokens in like.encoder_tokens.items()}

    def load(self, state: Cache) -> None:
        """Copy the contents of a cache of the same shape."""
        n, self.uncounted = state.length, state.uncounted
        self.length = n  # initial length: an image before the text has been read; `column` is the current length
        order = None
        if state.real is not None:  # move real tokens to the right end of each row, in order
            order = state.real.long().argsort(dim=1, stable=True)
        self.column.fill_(n - 1)
        self.places.copy_(torch.as_tensor(state.num_tokens(), device=self.clock.device))
        self.first.copy_(n - self.places[:, 0])
        if self.table is not None:
            self.table.copy_(self.own.expand_as(self.table))
        for path, layer in state.layers.items():
            mine = self.layers[path]
            assert not isinstance(mine, dict) and not isinstance(layer, dict)
            for target, source in zip(_given(mine), _given(layer), strict=True):
                if isinstance(layer, SelfAttentionCache):
                    held = source[:, :, : layer.num_held]
                    if order is not None:
                        where = order[:, layer.first :] - layer.first
                        held = held.gather(2, where.clamp(min=0)[:, None, :, None].expand_as(held))
                    target[:, :, layer.first : n] = held
                else:
                    target.copy_(_pad(source, 2))
        for stage, tokens in state.encoder_tokens.items():
            filled, room = _padded(tokens), self.encoder_tokens[stage]
            room.x.copy_(filled.x)
            if room.mask is not None and filled.mask is not None:
                room.mask.copy_(filled.mask)

    def copy_back(self, state: Cache) -> None:
        """Write what was appended since `load` back to the dynamic cache, so that its rows can be replaced."""
        n = state.length = int(self.column) + 1
        state.real = torch.arange(n, device=self.first.device) >= self.first[:, None]
        for path, mine in self.layers.items():
            layer = state.layers[path]
            if isinstance(layer, SelfAttentionCache) and isinstance(mine, SelfAttentionCache):
                layer.key, layer.value = (buffer[:, :, :n] for buffer in _given(mine))
                layer.first, layer.length = 0, n

    def evict_rows(self, rows: Tensor) -> None:
        """Discard the contents of these rows; they are empty until the next column."""
        self.places.index_fill_(0, rows, 0)
        self.first.index_copy_(0, rows, (self.column + 1).expand(len(rows)))

    def num_tokens(self) -> Tensor:
        return self.places

    def mask(self, own: Mask, n_query: int, n_keys: int) -> Mask:
        windows = [part.left for part in own.parts if isinstance(part, Window)]
        fresh = None if self.fresh is None else (self.fresh[0], self.fresh[1])
        numbered = own if own.by_position else None
        return StaticCacheMask(self.first, self.column, min(windows, default=None), self.table, fresh, numbered)

    def advance(self, mask: Tensor | None, batch: int, n: int, device: torch.device) -> None:
        self.clock += 1
        if self.table is not None:
            self.table.index_copy_(1, self.column, self.own)

    def reorder(self, rows: Tensor, memory: bool = True) -> None:
        """Reorder rows within the beams of a source; only their own past is reindexed."""
        if self.table is not None:
            self.table.copy_(self.table.index_select(0, rows))
            return
        for layer in self.layers.values():
            if isinstance(layer, StaticLayerCache):
                for buffer in _given(layer):
                    buffer.copy_(buffer.index_select(0, rows))


def shape_key(state: Cache) -> tuple[Any, ...]:
    """The properties of a cache that a captured step depends on, except how much of it is filled."""
    found: list[Any] = [state.uncounted]
    for layer in state.layers.values():
        assert isinstance(layer, (SelfAttentionCache, CrossAttentionCache))
        key, value = _given(layer)
        grown = None if isinstance(layer, SelfAttentionCache) else -(-key.shape[2] // PADDED)
        found.append((*key.shape[:2], grown, key.shape[3], value.shape[3]))
    for tokens in state.encoder_tokens.values():
        found.append((tokens.x.shape[0], tokens.x.shape[1] % PADDED == 0 and tokens.mask is None))
    return tuple(found)


def _given(layer: SelfAttentionCache | CrossAttentionCache) -> tuple[Tensor, Tensor]:
    assert layer.key is not None and layer.value is not None
    return layer.key, layer.value


def _pad(x: Tensor, dim: int) -> Tensor:
    """Pad a dimension with zeros to a multiple of PADDED."""
    spare = -x.shape[dim] % PADDED
    return x if not spare else torch.cat([x, x.new_zeros(*x.shape[:dim], spare, *x.shape[dim + 1 :])], dim=dim)


def _padded(tokens: Tokens) -> Tokens:
    """Copy an encoder's tokens to buffers of their own, with a mask if they were padded."""
    mask = tokens.mask
    if mask is None and tokens.x.shape[1] % PADDED:
        mask = torch.ones(tokens.x.shape[:2], dtype=torch.bool, device=tokens.x.device)
    return Tokens(_pad(tokens.x, 1).clone(), None if mask is None else _pad(mask, 1).clone())
