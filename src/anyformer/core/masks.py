"""Attention masks, which can be combined with & and |. True means "may attend".

    Causal() & Padding(real)            a decoder on padded rows
    (Causal() | Prefix(n)) & Padding(real)   a bidirectional prefix, the rest causal

A mask is a description. `allowed(q, k)` returns, for index tensors q [Q, 1] and k [1, K], a tensor that broadcasts to
[B, 1, Q, K]; `key_range` bounds the keys that a run of queries can see, so that a kernel can skip the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.packing import Packing
from anyformer.errors import InputError


class Mask:
    """Base class of all masks. It allows everything."""

    # Whether it depends only on the distance of query and key, so that packing the rows does not change its meaning.
    relative = False
    # Whether it depends on a token's position in its row, not counting padding.
    by_position = False
    # Whether it hides later tokens (except those of a prefix), so that a model with it can decode step by step.
    causal = False
    # Maximum number of tokens before a query that it may see; None if unlimited.
    span: int | None = None

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=q.device)

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        """Half-open range that contains all keys that queries first…last-1 can see."""
        return 0, n_keys

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks that must all allow a pair."""
        return (self,)

    @property
    def packed(self) -> PackedMask | None:
        """The part that keeps packed rows apart."""
        return next((part for part in self.parts if isinstance(part, PackedMask)), None)

    @property
    def without_packing(self) -> Mask:
        """The other parts, in positions within the row."""
        return reduce(and_, (part for part in self.parts if not isinstance(part, PackedMask)), NO_MASK)

    def __and__(self, other: Mask) -> Mask:
        parts = (*self.parts, *other.parts)
        return parts[0] if len(parts) == 1 else (AllOf(parts) if parts else NO_MASK)

    def __or__(self, other: Mask) -> Mask:
        return AnyOf((self, other))

    def dense(self, n_query: int, n_key: int, offset: int = 0, device: torch.device | None = None) -> Tensor:
        """The boolean tensor [1 or B, 1, n_query, n_key]; `offset` is the index of the first query."""
        q = torch.arange(offset, offset + n_query, device=device)[:, None]
        k = torch.arange(n_key, device=device)[None, :]
        allowed = self.allowed(q, k)
        return allowed.expand(allowed.shape[0], 1, n_query, n_key)


class NoMask(Mask):
    """No restriction."""

    relative = True

    @property
    def parts(self) -> tuple[Mask, ...]:
        return ()

    def __reduce__(self) -> str:
        return "NO_MASK"  # copies and pickles return NO_MASK, which kernels compare by identity


NO_MASK = NoMask()


@dataclass(frozen=True, eq=False)
class AllOf(Mask):
    """Allows what every part allows."""

    members: tuple[Mask, ...]

    @property
    def relative(self) -> bool:  # type: ignore[override]
        return all(member.relative for member in self.members)

    @property
    def by_position(self) -> bool:  # type: ignore[override]
        return any(member.by_position for member in self.members)

    @property
    def span(self) -> int | None:  # type: ignore[override]
        return min((member.span for member in self.members if member.span is not None), default=None)

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self.members

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        packed = self.packed
        within = (q, k) if packed is None else (packed.query.places[q], packed.key.places[k])
        result = self.members[0].allowed(*((q, k) if self.members[0] is packed else within))
        for member in self.members[1:]:
            result = result & member.allowed(*((q, k) if member is packed else within))
        return result

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        if self.packed is not None:  # the other parts use positions within the rows
            return self.packed.key_range(first, last, n_keys)
        ranges = [member.key_range(first, last, n_keys) for member in self.members]
        low = max(low for low, _ in ranges)
        return low, max(low, min(high for _, high in ranges))


@dataclass(frozen=True, eq=False)
class AnyOf(Mask):
    """Allows what any part allows."""

    members: tuple[Mask, ...]

    @property
    def by_position(self) -> bool:  # type: ignore[override]
        return any(member.by_position for member in self.members)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return any(member.causal for member in self.members)

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        result = self.members[0].allowed(q, k)
        for member in self.members[1:]:
            result = result | member.allowed(q, k)
        return result

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        ranges = [member.key_range(first, last, n_keys) for member in self.members]
        return min(low for low, _ in ranges), max(high for _, high in ranges)


@dataclass(frozen=True)
class Causal(Mask):
    """Each token attends to itself and earlier tokens."""

    relative = True
    causal = True

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q)[None, None]

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        return 0, min(last, n_keys)


@dataclass(frozen=True)
class Window(Mask):
    """At most `left` keys before the query and `right` after it, and the key at the query's own position."""

    relative = True

    left: int
    right: int = 0

    @property
    def span(self) -> int:  # type: ignore[override]
        return self.left

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return ((k >= q - self.left) & (k <= q + self.right))[None, None]

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        return max(0, min(first - self.left, n_keys)), max(0, min(last + self.right, n_keys))


@dataclass(frozen=True)
class Dilated(Mask):
    """Every `step`-th key on either side, at most `steps` steps away (Longformer, Sparse Transformer)."""

    relative = True

    step: int
    steps: int

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        distance = (q - k).abs()
        return ((distance % self.step == 0) & (distance <= self.step * self.steps))[None, None]

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        span = self.step * self.steps
        return max(0, min(first - span, n_keys)), max(0, min(last + span, n_keys))


@dataclass(frozen=True)
class Local2D(Mask):
    """Local attention over the cells of an image in raster order, at most `rows` up or down and `columns` to either
    side. The `extra` tokens before the cells (a class token) see everything and are seen by all."""

    by_position = True

    width: int
    rows: int
    columns: int
    extra: int = 0

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        at, of = q - self.extra, k - self.extra
        down = (at // self.width - of // self.width).abs()
        aside = (at % self.width - of % self.width).abs()
        near = (down <= self.rows) & (aside <= self.columns)
        return (near | (at < 0) | (of < 0))[None, None]

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        if self.extra:
            return 0, n_keys
        low = (first // self.width - self.rows) * self.width
        high = ((last - 1) // self.width + self.rows + 1) * self.width
        return max(0, min(low, n_keys)), max(0, min(high, n_keys))


@dataclass(frozen=True, eq=False)
class ShiftedMask(Mask):
    """A mask whose positions are shifted, for keys of which the first `by` were dropped."""

    inner: Mask
    by: int

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return self.inner.allowed(q + self.by, k + self.by)

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        low, high = self.inner.key_range(first + self.by, last + self.by, n_keys + self.by)
        return max(0, low - self.by), max(0, high - self.by)


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Allows the first `length` keys, the same number for all rows or one per row [B]."""

    by_position = True

    length: int | Tensor

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        length = self.length if isinstance(self.length, int) else self.length.view(-1, 1, 1, 1)
        return k[None, None] < length


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Allows only real keys: `real` is [B, K], True for a real token."""

    real: Tensor

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return self.real[:, k[0]][:, None, None, :]


@dataclass(frozen=True, eq=False)
class PositionMask(Mask):
    """A mask that uses positions instead of slots: `places` [B, K] numbers the real tokens of each row.

    The padding between a right-padded prompt and the tokens generated after it does not count as distance.
    """

    inner: Mask
    places: Tensor

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return self.inner.allowed(self.places[:, q[:, 0], None], self.places[:, None, k[0]])[0, 0].unsqueeze(1)


@dataclass(frozen=True, eq=False)
class StaticCacheMask(Mask):
    """The columns of a static cache that one query sees: from `first` [B] of its row to `column` [1], both on the
    cache's device, and at most `span` before the last.

    `table` [B, columns]: the row of the cache that holds each column of a row, since beams share the past of their
    ancestors. `fresh`: the newest key and value, not yet in the cache. Only a kernel that follows the table and writes
    the new key and value can compute such a call. `own`: the family's other mask, in positions of the real tokens of a
    row, which are contiguous.
    """

    first: Tensor
    column: Tensor
    span: int | None = None
    table: Tensor | None = None
    fresh: tuple[Tensor, Tensor] | None = None
    own: Mask | None = None

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        assert self.table is None and self.fresh is None
        low = self.first[:, None, None, None]
        low = low if self.span is None else torch.maximum(low, self.column - self.span)
        seen = (k >= low) & (k <= self.column)
        if self.own is None:
            return seen
        first = self.first[:, None, None]
        return seen & self.own.allowed(self.column - first, k - first)[0, 0].unsqueeze(1)


@dataclass(frozen=True, eq=False)
class DocumentMask(Mask):
    """Forbids attention between documents that share a row: the document of each query and of each key."""

    query: Tensor  # [B, Q]
    key: Tensor  # [B, K]

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return (self.query[:, q[:, 0], None] == self.key[:, None, k[0]])[:, None]


def together(spans: Tensor, n_keys: int) -> DocumentMask:
    """Allow attention within a span: `spans` [B, Q] for the last Q of `n_keys` tokens, -1 for tokens of no span."""
    whole = F.pad(spans, (n_keys - spans.shape[1], 0), value=-1)
    return DocumentMask(whole, whole.masked_fill(whole < 0, -2))


@dataclass(frozen=True, eq=False)
class PackedMask(Mask):
    """Packed rows (see Tokens): each query sees the keys of its own row. The other parts use positions within the
    row."""

    query: Packing
    key: Packing

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return (self.query.rows[q] == self.key.rows[k])[None, None]


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean tensor [B or 1, H or 1, Q, K] given by the caller, for masks that no other class describes."""

    tensor: Tensor

    def dense(self, n_query: int, n_key: int, offset: int = 0, device: torch.device | None = None) -> Tensor:
        return self.tensor[:, :, offset : offset + n_query, :n_key]

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        return self.tensor[:, :, q, k]


def given_mask(allowed: Tensor, n_keys: int, own_keys: bool) -> Mask:
    """The caller's mask [B or 1, 1, T, keys], whose rows are the queries of this pass."""
    if not own_keys or allowed.shape[3] != n_keys:
        raise InputError(
            f"attention_mask has shape {list(allowed.shape)}, but here {n_keys} keys are attended to; give it as"
            " [batch, tokens]."
        )
    return Dense(F.pad(allowed, (0, 0, n_keys - allowed.shape[2], 0)))
