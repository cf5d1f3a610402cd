"""A block is an ordered list of residual sublayers. Every transformer is such a list.

Original decoder:  self, cross, feedforward, each normalized after ("post")
GPT-2:             self, feedforward, each normalized before ("pre")
GPT-NeoX:          the same two, side by side (parallel)
Mamba:             a state-space mixer alone
TimeSformer:       self along the time, self over the image, feedforward
Before all these:  a recurrent layer alone, with neither norm nor residual connection
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.axial import AttentionAxis, merge_axis, split_axis
from anyformer.core.cache import Cache
from anyformer.core.convolution import (
    DilatedConvBlock,
    DilatedConvBlockConfig,
    DotAttention,
    DotAttentionConfig,
    GatedConvolution,
    GatedConvolutionConfig,
    PositionalCrossInput,
    PositionalCrossInputConfig,
    TokenMixing,
    TokenMixingConfig,
)
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK
from anyformer.core.norms import MaskedBatchNorm1d, NormConfig, add_and_norm, apply_norm, make_norm
from anyformer.core.positions import Positions
from anyformer.core.recurrent import (
    AttentionRNNDecoder,
    AttentionRNNDecoderConfig,
    RNNDecoder,
    RNNDecoderConfig,
    RNNEncoder,
    RNNEncoderConfig,
)
from anyformer.core.statespace import SelectiveStateSpace, SelectiveStateSpaceConfig
from anyformer.core.taps import NO_TAPS
from anyformer.tokens import Tokens

CrossAttendingConfig = (
    AttentionConfig | RNNDecoderConfig | AttentionRNNDecoderConfig | DotAttentionConfig | PositionalCrossInputConfig
)
ConvolutionConfig = GatedConvolutionConfig | DilatedConvBlockConfig | TokenMixingConfig
PartConfig = CrossAttendingConfig | ConvolutionConfig | FeedForwardConfig | SelectiveStateSpaceConfig | RNNEncoderConfig


@dataclass(frozen=True, kw_only=True)
class SublayerConfig(Settings):
    name: str  # "self", "cross" and "feedforward" are the taps' names too
    part: PartConfig
    order: Literal["pre", "post", "sandwich"] = "pre"
    norm: NormConfig | None = NormConfig()  # None: none at all, as before transformers
    context_norm: bool = False  # normalize what is attended to as well (Perceiver)
    residual: bool = True
    scale: float = 1.0  # of the sum of input and part (ConvS2S: √½, which keeps the variance)
    layer_scale: float | None = None  # each feature of the part times a learned number that starts here (layer scale)
    dropout: float = 0.0
    axis: AttentionAxis = "all"  # of a clip: attention along the time of each cell, or over the cells of each frame
    project: bool = False  # one more linear map of what the part made (divided attention)

    @property
    def width(self) -> int:
        return self.part.d_query if isinstance(self.part, AttentionConfig) else self.part.d_model

    @property
    def d_context(self) -> int | None:
        """The width of what the part looks at besides its own tokens, where it does."""
        return self.part.d_context if isinstance(self.part, CrossAttendingConfig) else None


@dataclass(frozen=True, kw_only=True)
class BlockConfig(Settings):
    sublayers: tuple[SublayerConfig, ...]
    parallel: bool = False  # all sublayers read the block's input, and their results are added at once
    drop_path: float = 0.0  # stochastic depth: the share of rows that skip a sublayer in training

    def check(self) -> None:
        names = [sublayer.name for sublayer in self.sublayers]
        self.require(len(set(names)) == len(names), f"two sublayers share a name: {', '.join(names)}.")
        post = any(sublayer.order == "post" for sublayer in self.sublayers)
        self.require(not (self.parallel and post), "parallel sublayers cannot be normalized after the sum.")


def make_part(config: PartConfig, positions: Positions | None) -> nn.Module:
    if isinstance(config, AttentionConfig):
        return Attention(config, positions)
    maker = PARTS[type(config)]
    return maker(config)


# Attention aside, which shares positions with its stack.
PARTS: dict[type[Settings], Callable[[Any], nn.Module]] = {
    FeedForwardConfig: FeedForward,
    SelectiveStateSpaceConfig: SelectiveStateSpace,
    RNNEncoderConfig: RNNEncoder,
    RNNDecoderConfig: RNNDecoder,
    AttentionRNNDecoderConfig: AttentionRNNDecoder,
    GatedConvolutionConfig: GatedConvolution,
    DilatedConvBlockConfig: DilatedConvBlock,
    DotAttentionConfig: DotAttention,
    PositionalCrossInputConfig: PositionalCrossInput,
    TokenMixingConfig: TokenMixing,
}


class LayerScale(nn.Module):
    """Layer scale (Touvron et al. 2021): small at first, so that a deep stack begins close to doing nothing."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(width))

    def reset(self, std: float) -> None:
        nn.init.constant_(self.weight, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Sublayer(nn.Module):
    """One part with its norms, dropout and residual connection."""

    def __init__(self, config: SublayerConfig, drop_path: float = 0.0, positions: Positions | None = None) -> None:
        super().__init__()
        self.config = config
        self.drop_path = drop_path
        norm = config.norm
        self.norm = make_norm(norm, config.width) if norm is not None else None
        self.after = make_norm(norm, config.width) if norm is not None and config.order == "sandwich" else None
        self.context_norm = None
        if config.context_norm and norm is not None and config.d_context is not None:
            self.context_norm = make_norm(norm, config.d_context)
        self.part = make_part(config.part, positions)
        self.project = Linear(config.width, config.width, residual=True) if config.project else None
        self.gain = LayerScale(config.width, config.layer_scale) if config.layer_scale is not None else None
        self.crosses = config.d_context is not None

    def read(self, tokens: Tokens) -> tuple[Tokens, Tensor]:
        """The residual stream, and what the part reads of it."""
        if self.config.order == "post" or self.norm is None:
            return tokens, tokens.x
        return add_and_norm(tokens, self.norm)

    def branch(
        self, tokens: Tokens, x: Tensor, memory: Tokens | None, state: Cache | None, first: int | None = None
    ) -> Tokens:
        """What the sublayer adds to the residual stream, where its part reads `x`."""
        if isinstance(self.part, FeedForward):
            made = tokens.replace(self.part(x, tokens.packing))
        elif first is not None:
            made = Tokens(self.part(tokens.replace(x), first=first), grid=tokens.grid)
        elif self.config.axis != "all":
            made = tokens.replace(self._grouped(tokens.replace(x)))
        else:
            result = self.part(tokens.replace(x), self.context(memory), state)
            made = result if isinstance(result, Tokens) else tokens.replace(result)  # Tokens: with a summary
        x = made.x
        if self.after is not None:
            x = apply_norm(self.after, x, tokens.mask)
        x = F.dropout(x, self.config.dropout) if self.training else x
        x = x if self.gain is None else self.gain(x)
        x = self._drop_path(x, tokens) if self.training and self.drop_path else x
        return made if x is made.x else made.replace(x)

    def _grouped(self, tokens: Tokens) -> Tensor:
        x = self.part(split_axis(tokens, self.config.axis))
        x = x if self.project is None else self.project(x)
        return merge_axis(x, tokens, self.config.axis)

    def context(self, memory: Tokens | None) -> Tokens | None:
        if not self.crosses:
            return None
        assert memory is not None
        if self.context_norm is None:
            return memory
        return memory.replace(apply_norm(self.context_norm, memory.x, memory.mask))

    def forward(self, tokens: Tokens, memory: Tokens | None, state: Cache | None, first: int | None = None) -> Tokens:
        tokens, read = self.read(tokens)
        made = self.branch(tokens, read, memory, state, first)
        before = tokens.x if first is None else tokens.x[:, :first]
        after = made.with_sum(before, made.x) if self.config.residual else made
        after = after if self.config.scale == 1.0 else after.replace(after.x * self.config.scale)
        if self.config.order == "post" and self.norm is not None:
            return after.replace(apply_norm(self.norm, after.x, after.mask))
        return after

    @property
    def narrows(self) -> bool:
        """Whether a part of the tokens can ask alone: plain attention among the tokens, nothing drawn for each."""
        part = self.config.part
        if not isinstance(self.part, Attention) or not isinstance(part, AttentionConfig):
            return False
        if self.config.axis != "all" or isinstance(self.norm, MaskedBatchNorm1d):
            return False
        plain = self.part.positions is None and part.mask is NO_MASK and part.memory_length is None and not self.crosses
        return plain and not (self.training and (part.dropout or self.config.dropout))

    @property
    def each(self) -> bool:
        """Whether a token does not depend on the others, nor on what is drawn for them."""
        if not isinstance(self.part, FeedForward) or isinstance(self.norm, MaskedBatchNorm1d):
            return False
        return not (self.training and (self.part.config.dropout or self.config.dropout))

    def _drop_path(self, x: Tensor, tokens: Tokens) -> Tensor:
        """Stochastic depth (Huang et al. 2016): whole rows skip the branch, the others are scaled up."""
        batch = tokens.packing.batch if tokens.packing is not None else x.shape[0]
        keep = (torch.rand(batch, device=x.device) >= self.drop_path).to(x.dtype) / (1 - self.drop_path)
        return x * (keep[tokens.packing.rows, None] if tokens.packing is not None else keep[:, None, None])


class Block(nn.Module):
    def __init__(self, config: BlockConfig, positions: Positions | None = None) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.sublayers = nn.ModuleDict(
            {
                sublayer.name: Sublayer(sublayer, config.drop_path, None if sublayer.name == "cross" else positions)
                for sublayer in config.sublayers
            }
        )

    def narrows(self, tokens: Tokens) -> bool:
        """Whether the first tokens can be had alone, to the same numbers: attention, and then what is done to each."""
        attention, *others = cast("Iterable[Sublayer]", self.sublayers.values())
        plain = tokens.mask is None and not tokens.packed and tokens.pos_embed is None and not self.config.parallel
        return plain and attention.narrows and all(sublayer.each for sublayer in others)

    def forward(
        self, tokens: Tokens, memory: Tokens | None = None, state: Cache | None = None, first: int | None = None
    ) -> Tokens:
        """Only the `first` tokens come out, where that is said: nobody wants the others."""
        # Without anything to attend to, a decoder's cross-attention stands aside (GPT-2 with add_cross_attention).
        parts = cast("Iterable[Sublayer]", self.sublayers.values())
        active = [sublayer for sublayer in parts if memory is not None or not sublayer.crosses]
        if self.config.parallel:
            branches = [sublayer.branch(*sublayer.read(tokens), memory, state).x for sublayer in active]
            tokens = tokens.replace(tokens.x + sum(branches))
        else:
            for sublayer in active:
                tokens, first = sublayer(tokens, memory, state, first), None
        self.taps.record("output", tokens.x, tokens.packing)
        return tokens
