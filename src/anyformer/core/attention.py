"""Attention as a part of a block: project, position, remember, attend, project. Self and cross alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.attend import attend, attention_weights
from anyformer.core.cache import PAST, Cache
from anyformer.core.linear import FusedLinear, Linear
from anyformer.core.masks import NO_MASK, Causal, DocumentMask, Mask, PackedMask, Padding, PositionMask, together
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Positions
from anyformer.core.taps import NO_TAPS
from anyformer.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Settings):
    """All widths are free: of the queries' tokens, of the context's, of query/key, of value, of the output."""

    d_query: int
    n_heads: int
    n_kv_heads: int | None = None  # fewer than n_heads: grouped; 1: multi-query
    d_context: int | None = None  # None: self-attention over tokens of width d_query
    d_qk: int | None = None  # all heads together
    d_value: int | None = None
    d_out: int | None = None
    bias: bool = True
    out_bias: bool = True
    scale: float | None = None  # None: 1 / √d_head
    qk_norm: NormConfig | None = None  # of each head's queries and keys, before they turn
    dropout: float = 0.0
    memory_length: int | None = (
        None  # remember the inputs of this many past tokens, without gradient, instead of their keys
    )
    mask: Mask = NO_MASK  # what the family forbids by itself: the future, what lies outside a window

    def check(self) -> None:
        self.require(self.n_heads > 0, f"n_heads is {self.n_heads}; it must be 1 or more.")
        for name, width in (("d_qk", self.width_qk), ("d_value", self.width_value)):
            self.require(width % self.n_heads == 0, f"{name} {width} is not a multiple of n_heads {self.n_heads}.")
        groups = self.kv_heads
        self.require(self.n_heads % groups == 0, f"n_heads {self.n_heads} is not a multiple of n_kv_heads {groups}.")

    @property
    def width_qk(self) -> int:
        return self.d_qk if self.d_qk is not None else self.d_query

    @property
    def width_value(self) -> int:
        return self.d_value if self.d_value is not None else self.width_qk

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads if self.n_kv_heads is not None else self.n_heads

    @property
    def d_head(self) -> int:
        return self.width_qk // self.n_heads

    @property
    def span(self) -> int | None:
        """How many tokens before a query it looks at, where the mask bounds that."""
        return self.mask.span if self.mask.relative or self.mask.by_position else None


class Attention(nn.Module):
    """Multi-head attention. `positions` may turn or bias; `score` may replace the scaled dot product."""

    def __init__(
        self, config: AttentionConfig, positions: Positions | None = None, score: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.positions = positions
        self.score = score
        self.taps = NO_TAPS
        keys = config.d_head * config.kv_heads
        values = config.width_value // config.n_heads * config.kv_heads
        if config.d_context is None:
            self.qkv = FusedLinear(
                config.d_query, {"query": config.width_qk, "key": keys, "value": values}, config.bias
            )
        else:
            self.query = Linear(config.d_query, config.width_qk, config.bias)
            self.kv = FusedLinear(config.d_context, {"key": keys, "value": values}, config.bias)
        d_out = config.d_out if config.d_out is not None else config.d_query
        self.out = Linear(config.width_value, d_out, config.out_bias, residual=True)
        self.query_norm = self.key_norm = None
        if config.qk_norm is not None:
            self.query_norm = make_norm(config.qk_norm, config.d_head)
            self.key_norm = make_norm(config.qk_norm, config.d_head)

    def forward(
        self,
        tokens: Tokens,
        context: Tokens | None = None,
        state: Cache | None = None,
        norm: nn.Module | None = None,
        add: Tensor | None = None,
        first: int | None = None,
    ) -> Tensor:
        """`context` is what is attended to: None for the tokens themselves. `state` remembers between steps; `norm` of
        the tokens comes first, `add` last. Only the `first` tokens ask, where that is said, and get an answer.
        """
        if norm is not None and (
            context is not None or tokens.pos_embed is not None or self.config.memory_length is not None
        ):
            tokens, norm = tokens.replace(norm(tokens.x)), None
        if first is not None:
            query, key, value, offset = self._few(tokens, first)
        elif context is not None:
            query, key, value, offset = self._cross(tokens, context, state)
        else:
            query, key, value, offset = self._self(tokens, state, norm)
        mask = self.mask_for(tokens, context, state, key.shape[2])
        beams = max(query.shape[0] // max(key.shape[0], 1), 1)  # that share the keys of one source
        query = _merge_beams(query, beams)
        scale = self.scale
        bias = self.positions.bias(query, key, offset, scale, tokens.grid) if self.positions else None
        if self.taps.watched:
            self._record_taps(tokens, context, _split_beams(query, beams), key, value)
            if self.taps.is_watched("weights"):
                weights = attention_weights(query, key, mask, scale=scale, bias=bias, offset=offset, score=self.score)
                self.taps.record("weights", _split_beams(weights, beams))
        dropout = self.config.dropout if self.training else 0.0
        heads = attend(
            query, key, value, mask, scale=scale, bias=bias, dropout=dropout, offset=offset, score=self.score
        )
        out = self.out(_merge_heads(_split_beams(heads, beams), tokens.packed), add=add)
        return self.taps.record("output", out, tokens.packing)

    @property
    def scale(self) -> float:
        return self.config.scale if self.config.scale is not None else self.config.d_head**-0.5

    def mask_for(self, tokens: Tokens, context: Tokens | None, state: Cache | None, n_keys: int) -> Mask:
        """What the family allows, which keys are real, and which tokens see each other whatever else holds."""
        mask = self._own_mask(tokens, context, state, n_keys)
        if context is not None or tokens.spans is None:
            return mask
        if "together" not in tokens.memo:
            tokens.memo["together"] = together(tokens.spans, n_keys)
        return mask | tokens.memo["together"]

    def _own_mask(self, tokens: Tokens, context: Tokens | None, state: Cache | None, n_keys: int) -> Mask:
        own, keys = self.config.mask, tokens if context is None else context
        if tokens.packing is not None and keys.packing is not None:
            return own & PackedMask(tokens.packing, keys.packing)
        if context is None and state is not None:
            return state.mask(own, tokens.x.shape[1], n_keys, tokens.memo)
        if keys.mask is None:
            return own if context is not None else self._apart(own, tokens)
        real = Padding(keys.mask[:, keys.mask.shape[1] - n_keys :])
        return PositionMask(own, keys.mask.cumsum(dim=1) - 1) & real if own.by_position else own & real

    @staticmethod
    def _apart(own: Mask, tokens: Tokens) -> Mask:
        """Causal attention does not cross from one text of a row to the next."""
        if tokens.documents is None or not any(isinstance(part, Causal) for part in own.parts):
            return own
        return own & DocumentMask(tokens.documents, tokens.documents)

    def _self(
        self, tokens: Tokens, state: Cache | None, norm: nn.Module | None = None
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        if state is not None and self.config.memory_length is not None:
            return self._recompute_memory(tokens, state)
        if tokens.pos_embed is None:
            query, key, value = self.qkv(tokens.x, norm)
        else:
            coded = tokens.x + tokens.pos_embed
            query, key = self.qkv.project_one("query", coded), self.qkv.project_one("key", coded)
            value = self.qkv.project_one("value", tokens.x)
        query, key, value = self._heads(query, key, value, tokens.packed)
        if self.positions is not None:
            at = _positions(tokens)
            query, key = self.positions.rotate(query, key, at, tokens.memo)
            value = self.positions.rotate_value(value, at, tokens.memo)
        if state is None:
            return query, key, value, 0
        memory = state.self_attention(self.cache_key, self.config.span)
        offset = memory.num_held
        key, value = memory.append(key, value)
        return query, key, value, offset

    def _few(self, tokens: Tokens, first: int) -> tuple[Tensor, Tensor, Tensor, int]:
        query = self.qkv.project_one("query", tokens.x[:, :first])
        key, value = self.qkv.project_one("key", tokens.x), self.qkv.project_one("value", tokens.x)
        return *self._heads(query, key, value, packed=False), 0

    def _recompute_memory(self, tokens: Tokens, state: Cache) -> tuple[Tensor, Tensor, Tensor, int]:
        """Keys and values of the last segment are made anew from its inputs, through which no gradient goes."""
        memory = state.recurrent(self.cache_key)
        past = memory.get(PAST, tokens.x[:, :0])
        everything = torch.cat([past, tokens.x], dim=1)
        kept = everything.shape[1] - min(self.config.memory_length or 0, everything.shape[1])
        memory[PAST] = everything[:, kept:].detach()
        query = self.qkv.project_one("query", tokens.x)
        key, value = self.qkv.project_one("key", everything), self.qkv.project_one("value", everything)
        return *self._heads(query, key, value, packed=False), past.shape[1]

    def _cross(self, tokens: Tokens, context: Tokens, state: Cache | None) -> tuple[Tensor, Tensor, Tensor, int]:
        query = self.query(tokens.x if tokens.pos_embed is None else tokens.x + tokens.pos_embed)
        memory = state.cross_attention(self.cache_key) if state is not None else None
        if memory is not None and memory.key is not None and memory.value is not None:
            query = self._split(query, self.config.n_heads, tokens.packed)
            return self.query_norm(query) if self.query_norm else query, memory.key, memory.value, 0
        if context.pos_embed is None:
            key, value = self.kv(context.x)
        else:
            key, value = (
                self.kv.project_one("key", context.x + context.pos_embed),
                self.kv.project_one("value", context.x),
            )
        query, key, value = self._heads(query, key, value, tokens.packed)
        if memory is not None:
            memory.key, memory.value = key.contiguous(), value.contiguous()  # read at every step from now on
        return query, key, value, 0

    def _heads(self, query: Tensor, key: Tensor, value: Tensor, packed: bool) -> tuple[Tensor, Tensor, Tensor]:
        query = self._split(query, self.config.n_heads, packed)
        key, value = (self._split(x, self.config.kv_heads, packed) for x in (key, value))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value

    @property
    def cache_key(self) -> str:
        """Under which a state has this part's memory."""
        return self.taps.path or f"attention {id(self)}"  # outside a model, a part has no name

    @staticmethod
    def _split(x: Tensor, n_heads: int, packed: bool) -> Tensor:
        """[B, T, H·d] -> [B, H, T, d]; packed [N, H·d] -> [1, H, N, d]"""
        batch, length = (1, x.shape[0]) if packed else x.shape[:2]
        return x.view(batch, length, n_heads, x.shape[-1] // n_heads).transpose(1, 2)

    def _record_taps(self, tokens: Tokens, context: Tokens | None, *roles: Tensor) -> None:
        for point, value in zip(("query", "key", "value"), roles, strict=True):
            if self.taps.is_watched(point):
                source = tokens if point == "query" or context is None else context
                if source.packing is not None:
                    value = source.packing.unpack(value[0].transpose(0, 1)).transpose(1, 2)
                self.taps.record(point, value)


def _merge_beams(query: Tensor, beams: int) -> Tensor:
    """[B·beams, H, Q, d] -> [B, H, beams·Q, d]: to keys that all of them see, beams are just more queries."""
    return query if beams == 1 else query.unflatten(0, (-1, beams)).transpose(1, 2).flatten(2, 3)


def _split_beams(x: Tensor, beams: int) -> Tensor:
    """[B, H, beams·Q, d] -> [B·beams, H, Q, d]"""
    return x if beams == 1 else x.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)


def _positions(tokens: Tokens) -> Tensor:
    if tokens.positions is None:
        return torch.arange(tokens.x.shape[-2], device=tokens.x.device).unsqueeze(0)
    return tokens.positions.unsqueeze(0) if tokens.packed else tokens.positions


def _merge_heads(heads: Tensor, packed: bool) -> Tensor:
    """[B, H, T, d] -> [B, T, H·d]; packed back to [N, H·d]"""
    joined = heads.transpose(1, 2).flatten(2)
    return joined.squeeze(0) if packed else joined
