"""A stack of blocks, applied in order. The same block may stand at several places (Perceiver)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.core.cache import Cache
from anyformer.core.norms import apply_norm
from anyformer.core.positions import Encoding, Positions
from anyformer.core.taps import recomputing
from anyformer.core.tokens import Tokens


class Stack(nn.Module):
    """`blocks` are modules (tokens, memory, cache) -> Tokens, mostly of class Block. `positions` (rotary, T5, ALiBi, …)
    is one encoding for all of them, or one for each."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        final_norm: nn.Module | None = None,
        positions: Positions | Sequence[Positions] | None = None,
        layer_drop: float = 0.0,  # fraction of blocks left out in training (Fan et al. 2020)
    ) -> None:
        super().__init__()
        self.positions = positions if isinstance(positions, Positions) else None
        distinct = list(dict.fromkeys(blocks))
        self.blocks = nn.ModuleList(distinct)
        self.order = [distinct.index(block) for block in blocks]
        self.final_norm, self.layer_drop = final_norm, layer_drop
        self.block_positions = nn.ModuleList(positions) if isinstance(positions, Sequence) else None
        self.gradient_checkpointing = False  # in training, keep the input of each block and compute the rest again

    @property
    def has_position_bias(self) -> bool:
        return any(positions.has_bias for positions in self._positions())

    def forward(
        self, tokens: Tokens | Tensor, memory: Tokens | Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tokens, list[Tokens]]:
        """The last tokens, and those after every block; given plain vectors [B, T, d], vectors."""
        memory = Tokens.of(memory)
        if isinstance(tokens, Tensor):
            last, layers = self(Tokens(tokens), memory, cache)
            return last.x, [layer.x for layer in layers]
        hidden: list[Tokens] = []
        encodings, recompute = self._encodings(tokens), self.recomputes(cache)
        for turn, index in enumerate(self.order):
            if self.training and self.layer_drop and torch.rand(()) < self.layer_drop:
                continue
            tokens = tokens.with_encoding(encodings[turn]) if encodings else tokens
            block = self.blocks[index]
            tokens = self.recomputed(block, tokens, memory) if recompute else block(tokens, memory, cache)
            tokens = self.after_block(tokens)
            hidden.append(tokens)
        return self.finish(tokens), hidden

    def finish(self, tokens: Tokens) -> Tokens:
        """What follows the last block."""
        if self.final_norm is None:
            return tokens
        return tokens.replace(apply_norm(self.final_norm, tokens.x, tokens.mask))

    def after_block(self, tokens: Tokens) -> Tokens:
        """What follows every block; nothing here."""
        return tokens

    def _positions(self) -> list[Positions]:
        """The position encoding of each turn; empty if there is none."""
        if self.block_positions is not None:
            return [cast("Positions", self.block_positions[index]) for index in self.order]
        return [] if self.positions is None else [self.positions] * len(self.order)

    def _encodings(self, tokens: Tokens) -> list[Encoding | None]:
        """What each turn's position encoding computes, once for all that are equal."""
        made: dict[Any, Encoding | None] = {}
        turns = self._positions()
        for positions in turns:
            if positions.shared_key not in made:
                made[positions.shared_key] = positions.prepare(tokens)
        return [made[positions.shared_key] for positions in turns]

    def recomputes(self, cache: Cache | None) -> bool:
        """Whether blocks are computed again for gradients. A cache has moved on by then."""
        return self.gradient_checkpointing and self.training and torch.is_grad_enabled() and cache is None

    def recomputed(self, block: nn.Module, tokens: Tokens, memory: Tokens | None) -> Tokens:
        """A block of which only the input is kept for gradients."""
        watched: dict[str, Any] = {"context_fn": recomputing} if block.taps.watched else {}  # type: ignore[union-attr]
        return checkpoint(block, tokens, memory, use_reentrant=False, **watched)
