"""A stack of blocks, applied in order; some families apply a run of blocks several times (Perceiver)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from anyformer.config import Settings
from anyformer.core.block import Block, BlockConfig
from anyformer.core.cache import Cache
from anyformer.core.norms import MaskedBatchNorm1d, NormConfig, apply_norm, make_norm
from anyformer.core.positions import Positions
from anyformer.core.static_cache import StaticCache
from anyformer.core.taps import recomputing
from anyformer.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class StackConfig(Settings):
    blocks: tuple[BlockConfig, ...]
    order: tuple[int, ...] | None = None  # which block comes when; None: each once
    final_norm: NormConfig | None = None
    norm_every_layer: bool = False  # the final norm also after every block, as DETR's auxiliary losses read it
    final_dropout: float = 0.0  # after the final norm, in training
    layer_drop: float = 0.0  # the chance that a block is left out in training (Fan et al. 2020)

    @classmethod
    def repeat(cls, block: BlockConfig, n_layers: int, final_norm: NormConfig | None = None) -> StackConfig:
        return cls(blocks=(block,) * n_layers, final_norm=final_norm)


class Stack(nn.Module):
    """`positions` (rotary, T5, XL, ALiBi) are shared by all self-attentions of the stack, or one a block. `between`,
    where given, sees the tokens before every block and after the last, with the number of blocks behind them, and may
    hand on others: boxes that each layer moves a little."""

    def __init__(
        self,
        config: StackConfig,
        width: int,
        positions: Positions | Sequence[Positions] | None = None,
        between: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.positions = positions if isinstance(positions, Positions) else None
        each = positions if isinstance(positions, Sequence) else [positions] * len(config.blocks)
        self.has_position_bias = any(one is not None and one.has_bias for one in each)
        self.blocks = nn.ModuleList(Block(block, one) for block, one in zip(config.blocks, each, strict=True))
        self.order = config.order if config.order is not None else tuple(range(len(config.blocks)))
        self.final_norm = make_norm(config.final_norm, width) if config.final_norm is not None else None
        self.between = between
        self.gradient_checkpointing = (
            False  # in training, blocks keep their input alone and compute the rest again for gradients
        )

    def forward(
        self, tokens: Tokens, memory: Tokens | None = None, state: Cache | None = None, first: int | None = None
    ) -> tuple[Tokens, list[Tokens]]:
        """The last tokens, and those after every block (a loss or a reader may want each of them). Where nobody wants
        more than the `first` of the last ones, the last block may do no more than those."""
        if isinstance(state, StaticCache) and state.fresh is not None and not self.config.norm_every_layer:
            from anyformer.core.lean import step

            return step(self, tokens, memory, state), []  # a recorded step, which nobody looks into
        layers: list[Tokens] = []
        for turn, index in enumerate(self.order):
            tokens = tokens if self.between is None else self.between(tokens, len(layers))
            if self.training and self.config.layer_drop and torch.rand(()) < self.config.layer_drop:
                continue
            few = first if turn == len(self.order) - 1 else None
            tokens = self._run_block(cast("Block", self.blocks[index]), tokens, memory, state, few)
            if self.config.norm_every_layer:
                tokens = self._norm(tokens)
            layers.append(tokens)
        tokens = self._norm(tokens)
        tokens = tokens if self.between is None else self.between(tokens, len(layers))
        if self.training and self.config.final_dropout:
            tokens = tokens.replace(F.dropout(tokens.x, self.config.final_dropout))
        return tokens, layers

    def _run_block(
        self, block: Block, tokens: Tokens, memory: Tokens | None, state: Cache | None, first: int | None
    ) -> Tokens:
        first = first if first is not None and self._narrows(block, tokens) else None
        # A state has moved on by the time that gradients are computed.
        again = self.gradient_checkpointing and self.training and torch.is_grad_enabled() and state is None
        if not again:
            return cast("Tokens", block(tokens, memory, state, first))
        watched: dict[str, Any] = {"context_fn": recomputing} if block.taps.watched else {}
        plain = tokens.replace(tokens.x)  # without summands
        made: Tokens = checkpoint(block, plain, memory, state, first, use_reentrant=False, **watched)
        return made

    def _narrows(self, block: Block, tokens: Tokens) -> bool:
        drawn = self.training and self.config.final_dropout
        if isinstance(self.final_norm, MaskedBatchNorm1d):
            return False
        return self.between is None and not self.config.norm_every_layer and not drawn and block.narrows(tokens)

    def _norm(self, tokens: Tokens) -> Tokens:
        if self.final_norm is None:
            return tokens
        return tokens.replace(apply_norm(self.final_norm, tokens.x, tokens.mask))
