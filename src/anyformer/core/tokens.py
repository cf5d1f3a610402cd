"""Tokens: the type that inputs, stacks and heads exchange.

Padded, `x` is [B, T, d] with `mask` [B, T] (True = a real token). Packed, `x` is [N, d]: the real tokens of all rows,
one after another, and `packing` says where each came from. Everything between inputs and heads works on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from anyformer.core.packing import Packing

if TYPE_CHECKING:
    from anyformer.core.positions import Encoding


class Tokens(NamedTuple):
    """A batch of sequences of vectors. `replace` returns a copy with other vectors.

    It is a tuple, so that tools which look for tensors in what modules exchange find them.
    """

    x: Tensor  # [B, T, d]; packed [N, d]
    mask: Tensor | None = None  # [B, T], True = a real token; None: all are real
    positions: Tensor | None = None  # [B or 1, T] indices of the real tokens; None: 0, 1, 2, …
    pos_embed: Tensor | None = None  # [B, T, d] that attention adds to queries and keys, never to values (DETR)
    grid: tuple[int, ...] | None = None  # (rows, columns) of an image's tokens, (rows, columns, frames) of a clip's
    packing: Packing | None = None  # where packed tokens came from
    summary: Tensor | None = None  # [B, n, d] the last states of a recurrent encoder, from which its decoder starts
    spans: Tensor | None = None  # [B, T] numbers of spans with bidirectional attention; -1: none
    documents: Tensor | None = None  # [B or 1, T] document numbers in a row; causal attention stays within each
    allowed: Tensor | None = None  # [B or 1, 1, T, keys], True = may attend: the caller's, in place of all other masks
    encoding: Encoding | None = None  # what the stack's position encoding computed for this pass

    @classmethod
    def of(cls, x: Tokens | Tensor | None) -> Tokens | None:
        """Convert vectors [B, T, d] to tokens; return tokens unchanged."""
        return cls(x) if isinstance(x, Tensor) else x

    @property
    def packed(self) -> bool:
        return self.packing is not None

    def replace(self, x: Tensor) -> Tokens:
        """The same tokens with other vectors."""
        return self._replace(x=x)

    def with_encoding(self, encoding: Encoding | None) -> Tokens:
        return self._replace(encoding=encoding)

    def pack(self) -> Tokens:
        """Remove the padding: [B, T, d] -> [N, d]."""
        if self.packing is not None:
            return self
        batch, length = self.x.shape[:2]
        packing = Packing.full(batch, length, self.x.device) if self.mask is None else Packing.of(self.mask)
        return self._replace(
            x=packing.pack(self.x),
            mask=None,
            positions=None if self.positions is None else packing.pack(self.positions.expand(batch, length)),
            pos_embed=None if self.pos_embed is None else packing.pack(self.pos_embed.expand(batch, -1, -1)),
            packing=packing,
        )

    def pad(self) -> Tokens:
        """Convert to [B, T, d], with zeros at the padding."""
        if self.packing is None:
            return self
        return self._replace(
            x=self.packing.unpack(self.x),
            mask=self.packing.mask,
            positions=None if self.positions is None else self.packing.unpack(self.positions),
            pos_embed=None if self.pos_embed is None else self.packing.unpack(self.pos_embed),
            packing=None,
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """Apply a function along the batch to every tensor of an encoder's tokens."""
        return Tokens(
            change(self.x),
            None if self.mask is None else change(self.mask),
            pos_embed=None if self.pos_embed is None else change(self.pos_embed.expand(self.x.shape[0], -1, -1)),
            grid=self.grid,
            summary=None if self.summary is None else change(self.summary),
        )
