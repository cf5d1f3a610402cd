"""Insert rows into a cache and evict finished ones while the other rows continue.

The rows of a cache share its columns and all end at the last one; `state.real` marks where each begins. `insert_rows`
aligns a row of another cache at the last column. The columns before it are not real; if it is longer than the cache,
the cache is extended on the left. `compact` removes the oldest columns that no row needs, so that the cache stays
about as wide as its longest active row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.cache import GROW_BY, PAST, Cache, CrossAttentionCache, RecurrentState, SelfAttentionCache
from anyformer.core.tokens import Tokens

SPARE = GROW_BY // 2  # columns that nobody needs, from which on moving the others pays


def insert_rows(state: Cache, rows: Tensor, other: Cache) -> None:
    """Put the rows of `other` in the place of `rows` [n]. A mark cannot come back to the rows that were there."""
    assert not state.marks, "rows are replaced while a mark would come back to them"
    _add_columns(state, other.length - state.length)
    width = _source_width(state, rows, other)
    for path, theirs in other.layers.items():
        mine = state.layers[path]
        if isinstance(mine, SelfAttentionCache) and isinstance(theirs, SelfAttentionCache):
            _insert_self_attention(mine, rows, theirs)
        elif isinstance(mine, CrossAttentionCache) and isinstance(theirs, CrossAttentionCache):
            _insert_cross_attention(mine, rows, theirs, width)
        elif isinstance(mine, RecurrentState) and isinstance(theirs, RecurrentState):
            _insert_recurrent(mine, rows, theirs)
    state.real = _real(state).index_copy(0, rows, F.pad(_real(other), (state.length - other.length, 0)))
    state.encoder_tokens = {
        stage: _insert_tokens(tokens, rows, other.encoder_tokens[stage], width)
        for stage, tokens in state.encoder_tokens.items()
    }


def evict_rows(state: Cache, rows: Tensor) -> None:
    """Nothing of these rows is needed any more. They go on with the others, as if empty, until they are replaced."""
    state.real = _real(state).index_fill(0, rows, False)
    for layer in state.layers.values():
        if isinstance(layer, RecurrentState):
            layer.apply(lambda x: x.index_fill(0, rows, 0))
    for stage, tokens in state.encoder_tokens.items():
        if tokens.mask is not None:
            mask = tokens.mask.index_fill(0, rows, False)
            state.encoder_tokens[stage] = Tokens(
                tokens.x, mask, pos_embed=tokens.pos_embed, grid=tokens.grid, summary=tokens.summary
            )


def compact(state: Cache, spare: int = SPARE) -> None:
    """Let go of the columns on the left that are real in no row, once there are `spare` of them or more."""
    n = 0 if state.real is None else int(state.real.any(dim=0).int().argmax())
    if state.real is None or n < max(spare, 1):
        return
    assert not state.marks, "columns go while a mark counts them"
    state.real, state.length = state.real[:, n:], state.length - n
    for layer in state.layers.values():
        if isinstance(layer, SelfAttentionCache):
            if n > layer.first:
                layer.drop_before(n)
            layer.first, layer.length = layer.first - n, layer.length - n
        elif isinstance(layer, RecurrentState) and PAST in layer:
            layer[PAST] = layer[PAST][:, max(layer[PAST].shape[1] - state.length, 0) :]


def _real(state: Cache) -> Tensor:
    """Which columns are real in each row, spelled out."""
    if state.real is not None:
        return state.real
    layer = next(iter(state.layers.values()))
    some = next(iter(layer.values())) if isinstance(layer, RecurrentState) else layer.key
    assert some is not None, "a state that has read nothing has no rows"
    return torch.ones(some.shape[0], state.length, dtype=torch.bool, device=some.device)


def _add_columns(state: Cache, n: int) -> None:
    """n more columns on the left, which no row has and no layer holds."""
    if n <= 0:
        return
    state.real, state.length = F.pad(_real(state), (n, 0)), state.length + n
    for layer in state.layers.values():
        if isinstance(layer, SelfAttentionCache):
            layer.first, layer.length = layer.first + n, layer.length + n


def _insert_self_attention(mine: SelfAttentionCache, rows: Tensor, theirs: SelfAttentionCache) -> None:
    n = theirs.num_held if mine.span is None else min(theirs.num_held, mine.span)
    more, held = n - mine.num_held, mine.num_held
    if more > 0:

        def shift(buffer: Tensor) -> Tensor:
            larger = buffer.new_zeros(*buffer.shape[:2], n + GROW_BY, buffer.shape[3])
            larger[:, :, more:n] = buffer[:, :, :held]
            return larger

        mine.apply(shift)
        mine.first -= more
    last = mine.num_held
    for buffer, new in ((mine.key, theirs.key), (mine.value, theirs.value)):
        assert buffer is not None and new is not None
        buffer[:, :, last - n : last].index_copy_(0, rows, new[:, :, theirs.num_held - n : theirs.num_held])


def _insert_cross_attention(mine: CrossAttentionCache, rows: Tensor, theirs: CrossAttentionCache, width: int) -> None:
    assert mine.key is not None and mine.value is not None and theirs.key is not None and theirs.value is not None
    mine.key = _fit(mine.key, width).index_copy_(0, rows, _fit(theirs.key, width))
    mine.value = _fit(mine.value, width).index_copy_(0, rows, _fit(theirs.value, width))


def _insert_recurrent(mine: RecurrentState, rows: Tensor, theirs: RecurrentState) -> None:
    for name, new in theirs.items():
        old = mine[name]
        if name == PAST:
            width = max(old.shape[1], new.shape[1])
            old, new = (F.pad(x, (0, 0, width - x.shape[1], 0)) for x in (old, new))
        mine[name] = old.index_copy(0, rows, new)


def _source_width(state: Cache, rows: Tensor, other: Cache) -> int:
    """How many of the encoder's tokens some row has once the new rows are there. Sources share their first column."""
    width = 1
    for stage, tokens in state.encoder_tokens.items():
        for mask in (_mask(tokens).index_fill(0, rows, False), _mask(other.encoder_tokens[stage])):
            used = mask.any(dim=0).nonzero()
            width = max(width, int(used[-1]) + 1 if len(used) else 0)
    return width


def _insert_tokens(mine: Tokens, rows: Tensor, theirs: Tokens, width: int) -> Tokens:
    whole = mine.mask is None and theirs.mask is None and mine.x.shape[1] == theirs.x.shape[1] == width

    def put(old: Tensor, new: Tensor) -> Tensor:
        return _fit(old, width).index_copy(0, rows, _fit(new, width))

    def put_code(old: Tensor, new: Tensor) -> Tensor:
        return put(old.expand(mine.x.shape[0], -1, -1), new.expand(theirs.x.shape[0], -1, -1))

    return Tokens(
        put(mine.x, theirs.x),
        None if whole else put(_mask(mine).unsqueeze(2), _mask(theirs).unsqueeze(2)).squeeze(2),
        pos_embed=None
        if mine.pos_embed is None or theirs.pos_embed is None
        else put_code(mine.pos_embed, theirs.pos_embed),
        grid=mine.grid,
        summary=None
        if mine.summary is None or theirs.summary is None
        else mine.summary.index_copy(0, rows, theirs.summary),
    )


def _mask(tokens: Tokens) -> Tensor:
    if tokens.mask is not None:
        return tokens.mask
    return torch.ones(tokens.x.shape[:2], dtype=torch.bool, device=tokens.x.device)


def _fit(x: Tensor, width: int) -> Tensor:
    """[..., T, d] -> [..., width, d]: cut at the end, or filled with zeros."""
    missing = width - x.shape[-2]
    return F.pad(x, (0, 0, 0, missing)) if missing > 0 else x[..., :width, :]
