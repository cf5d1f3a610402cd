"""Multi-head attention, self and cross alike: project, rotate, cache, attend, project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.attend import attend, attention_weights
from anyformer.core.cache import Cache
from anyformer.core.linear import FusedLinear, Linear
from anyformer.core.masks import NO_MASK, DocumentMask, Mask, PackedMask, Padding, PositionMask, given_mask, together
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Settings):
    """All widths are free: of the queries' tokens, of the context's, of query and key, of value, of the output."""

    d_query: int
    n_heads: int
    n_kv_heads: int | None = None  # fewer than n_heads: grouped; 1: multi-query
    d_context: int | None = None  # width of the tokens that cross-attention reads; None: self-attention
    d_qk: int | None = None  # of all heads together; None: d_query
    d_value: int | None = None  # of all heads together; None: d_qk
    d_out: int | None = None  # None: d_query
    bias: bool = True
    out_bias: bool = True
    scale: float | None = None  # None: 1 / √d_head
    qk_norm: NormConfig | None = None  # of each head's queries and keys, before they are rotated
    dropout: float = 0.0
    mask: Mask = NO_MASK  # the family's own mask, such as causal or a window

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
        """Number of tokens before a query that it can attend to; None if the mask does not bound it."""
        return self.mask.span if self.mask.relative or self.mask.by_position else None


class Attention(nn.Module):
    """Multi-head attention. Positions come with the tokens; `score` replaces the scaled dot product."""

    tap_points = ("query", "key", "value", "weights", "output")

    def __init__(self, config: AttentionConfig, score: nn.Module | None = None) -> None:
        super().__init__()
        self.config, self.score, self.taps = config, score, NO_TAPS
        self.crosses = config.d_context is not None
        self.has_cache = any(part.causal for part in config.mask.parts)
        self.scale = config.d_head**-0.5 if config.scale is None else config.scale
        widths = {
            "query": config.width_qk,
            "key": config.d_head * config.kv_heads,
            "value": config.width_value // config.n_heads * config.kv_heads,
        }
        if config.d_context is None:
            self.qkv = FusedLinear(config.d_query, widths, config.bias)
        else:
            self.query = Linear(config.d_query, widths.pop("query"), config.bias)
            self.kv = FusedLinear(config.d_context, widths, config.bias)
        self.widths = widths
        d_out = config.d_out if config.d_out is not None else config.d_query
        self.out = Linear(config.width_value, d_out, config.out_bias, residual=True)
        norm = config.qk_norm
        self.query_norm = None if norm is None else make_norm(norm, config.d_head)
        self.key_norm = None if norm is None else make_norm(norm, config.d_head)

    def forward(
        self,
        tokens: Tokens | Tensor,
        memory: Tokens | Tensor | None = None,
        cache: Cache | None = None,
        source: Tokens | None = None,
    ) -> Tensor:
        """[B, T, d_out]. Cross-attention reads keys and values from `memory`. Self-attention reads them from the tokens
        themselves, or from a `source` that ends with them (Transformer-XL) or begins with them (fewer queries than
        keys). Plain vectors [B, T, d] may stand for tokens."""
        tokens = tokens if isinstance(tokens, Tokens) else Tokens(tokens)
        if self.crosses:
            source = Tokens.of(memory)
        query, key, value = self.project(tokens, tokens if source is None else source, cache)
        y = self.out(self.mix(query, key, value, tokens, source, cache))
        return self.taps.record("output", y, tokens.packing)

    def project(
        self, tokens: Tokens, source: Tokens, cache: Cache | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Queries of `tokens`, keys and values of `source`, the heads side by side; no keys if they are cached."""
        if not self.crosses and source is tokens and tokens.pos_embed is None:
            query, key, value = self.project_fused(self.qkv, tokens.x)
            return query, key, value
        asking = with_positions(tokens)
        keyed = asking if source is tokens else with_positions(source)
        if not self.crosses:
            query = self.role(self.qkv, "query", asking)
            return query, self.role(self.qkv, "key", keyed), self.role(self.qkv, "value", source.x)
        query = self.query(asking)
        if cache is not None and cache.cross_attention(self.taps.name(self)).key is not None:
            return query, None, None
        if source.pos_embed is None:
            key, value = self.project_fused(self.kv, source.x)
            return query, key, value
        return query, self.role(self.kv, "key", keyed), self.role(self.kv, "value", source.x)

    def project_fused(self, linear: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        return self.split(linear(x))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split_with_sizes(list(self.widths.values()), dim=-1)

    def role(self, linear: nn.Module, name: str, x: Tensor) -> Tensor:
        """Apply one role of a fused layer, also if the layer was replaced, for example by an adapter."""
        if isinstance(linear, FusedLinear):
            return linear(x, role=name)
        return self.split(linear(x))[list(self.widths).index(name)]

    def mix(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        tokens: Tokens,
        source: Tokens | None,
        cache: Cache | None,
    ) -> Tensor:
        """The concatenated results of all heads [B, T, H·v]: everything between the projections and the output
        layer."""
        config, packing = self.config, tokens.packing if source is None else source.packing
        encoding = None if self.crosses else tokens.encoding
        query = split_heads(query, config.n_heads, tokens.packed)  # [B, H, Q, d]
        query = query if self.query_norm is None else self.query_norm(query)
        if key is not None and value is not None:
            key, value = (split_heads(x, config.kv_heads, tokens.packed) for x in (key, value))  # [B, G, K, d]
            key = key if self.key_norm is None else self.key_norm(key)
            if encoding is not None:
                query, key, value = encoding.rotate(query, key, value)
        key, value, offset = self._with_cached(query, key, value, source, cache)  # [B, G, K, d]
        query = self.taps.record("query", query, tokens.packing, heads=True)
        key = self.taps.record("key", key, packing, heads=True)
        value = self.taps.record("value", value, packing, heads=True)
        mask = self.mask_for(tokens, source, cache, key.shape[2])
        bias = None if encoding is None else encoding.bias(query, key, offset, self.scale)
        how: dict[str, Any] = {"scale": self.scale, "bias": bias, "offset": offset, "score": self.score}
        weights = None
        if self.taps.is_watched("weights"):
            weights = self.taps.record("weights", attention_weights(query, key, mask, **how))  # [B, H, Q, K]
        dropout = config.dropout if self.training else 0.0
        return join_heads(attend(query, key, value, mask, **how, dropout=dropout, weights=weights), tokens.packed)

    def _with_cached(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, source: Tokens | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor, int]:
        """All keys and values, those of earlier steps first, and the index of the first query among them."""
        if self.crosses and cache is not None:
            entry = cache.cross_attention(self.taps.name(self))
            if key is not None and value is not None:
                # Contiguous, since every later step reads them.
                entry.key, entry.value = key.contiguous(), value.contiguous()
            key, value = entry.key, entry.value
        assert key is not None and value is not None
        if self.crosses or cache is None:
            return key, value, 0
        if source is not None:  # it ends with the tokens
            return key, value, key.shape[2] - query.shape[2]
        past = cache.self_attention(self.taps.name(self), self.config.span)
        offset = past.num_held
        return *past.append(key, value), offset

    def mask_for(self, tokens: Tokens, source: Tokens | None, cache: Cache | None, n_keys: int) -> Mask:
        """The complete mask: the family's own, the padding, documents, and spans with bidirectional attention."""
        if tokens.allowed is not None and not self.crosses:
            return given_mask(tokens.allowed, n_keys, source is None)
        mask, keys = self.config.mask, tokens if source is None else source
        if tokens.packing is not None and keys.packing is not None:
            mask = mask & PackedMask(tokens.packing, keys.packing)
        elif not self.crosses and cache is not None:
            mask = cache.mask(mask, tokens.x.shape[1], n_keys)
        elif keys.mask is not None:
            real = Padding(keys.mask[:, keys.mask.shape[1] - n_keys :])
            mask = (PositionMask(mask, keys.mask.cumsum(dim=1) - 1) if mask.by_position else mask) & real
        elif source is None and tokens.documents is not None and self.has_cache:  # causal
            mask = mask & DocumentMask(tokens.documents, tokens.documents)
        return mask if source is not None or tokens.spans is None else mask | together(tokens.spans, n_keys)


def with_positions(tokens: Tokens) -> Tensor:
    """The vectors, with those of their positions that queries and keys have in every layer (DETR)."""
    return tokens.x if tokens.pos_embed is None else tokens.x + tokens.pos_embed


def split_heads(x: Tensor, n_heads: int, packed: bool) -> Tensor:
    """[B, T, H·d] -> [B, H, T, d]; packed [N, H·d] -> [1, H, N, d]"""
    batch, length = (1, x.shape[0]) if packed else x.shape[:2]
    return x.view(batch, length, n_heads, x.shape[-1] // n_heads).transpose(1, 2)


def join_heads(heads: Tensor, packed: bool) -> Tensor:
    """[B, H, T, d] -> [B, T, H·d]; packed back to [N, H·d]"""
    joined = heads.transpose(1, 2).flatten(2)
    return joined.squeeze(0) if packed else joined
