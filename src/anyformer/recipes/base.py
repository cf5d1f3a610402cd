"""What all transformers have in common: the settings of a stack, and the stack that they describe.

A family is a dataclass that changes defaults, and a table of sizes. What only some families let users set is a constant
or a property here, and a field of the same name there. `positions`, `mask`, `score`, `norm`, `norm_order` and
`activation` are settings of every family:  build("gpt2-tiny", positions="alibi"), build("bert-tiny", mask="window:64").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from torch import nn

from anyformer import plugins
from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, NormOrder, Sublayer
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK, Mask
from anyformer.core.norms import LayerScale, NormConfig, make_norm
from anyformer.core.positions import (
    ALiBi,
    LearnedPositions,
    NetworkPositions,
    Positions,
    RelativeBuckets,
    RelativeXL,
    Rotary,
    Rotary2D,
)
from anyformer.core.rope import RopeConfig
from anyformer.core.score import SoftCappedScore
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError, nearest
from anyformer.layers.wrappers import FinalDropoutStack
from anyformer.recipes.settings import (
    ATTENDED,
    ATTENDED_2D,
    EMBEDDED,
    MASKS,
    check_mask,
    check_positions,
    check_score,
    make_mask,
    make_score,
    split_masks,
)

Norm = Literal["layer", "rms", "rms_offset", "batch"]

# A model that is built in a moment: what tests and first steps want.
TINY: dict[str, Any] = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_hidden": 128}


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(Settings):
    """Of every stack of blocks, whatever layer puts a token into context: attention, or one of its ancestors."""

    n_layers: int = 12
    d_model: int = 768
    norm: Norm = "layer"
    norm_eps: float = 1e-5
    norm_order: NormOrder = "pre"
    positions: str = "learned"  # see recipes/settings.py
    positions_combine: Literal["add", "concat"] = "add"  # "concat": beside the token's vector, and projected back
    dropout: float = 0.0
    drop_path: float = 0.0  # of the last block; those before it less
    layer_drop: float = 0.0
    init_std: float = 0.02

    # Constants of a family, or fields of its class.
    reads_text = False
    reports_normed = False  # the last of an encoder's hidden states is that behind the final norm
    layer_scale = cast("float | None", None)
    score_cap = cast("float | None", None)  # scores of attention stay between -cap and cap
    position_kinds: ClassVar[tuple[str, ...]] = EMBEDDED

    def check(self) -> None:
        check_positions(self.positions, self.position_kinds)

    @property
    def kinds(self) -> list[str]:
        """The position encodings."""
        return self.positions.split("+")

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the tokens, if they are cells of an image."""
        return None

    @property
    def grid_offset(self) -> int:
        """The number of tokens before those of the grid."""
        return 0

    @property
    def visible_prefix(self) -> int:
        """The number of first tokens that see each other, by a prefix mask of some layer."""
        return 0

    @property
    def n_positions(self) -> int:
        """Rows of a table of positions."""
        return int(getattr(self, "max_length", 2048))

    @property
    def length_limit(self) -> int | None:
        """The number of tokens that position encodings are made for; None: any."""
        bounded = {"learned", "sinusoidal", "network", "rotary"} & set(self.kinds)
        return getattr(self, "max_length", None) if bounded else None

    @property
    def norm_config(self) -> NormConfig:
        return NormConfig(kind=self.norm, eps=self.norm_eps)

    @property
    def final_dropout(self) -> float:
        """Dropout after the final norm."""
        return 0.0

    @property
    def has_final_norm(self) -> bool:
        return self.norm_order != "post"

    def has_norm(self, layer: int, part: str) -> bool:
        """Whether a sublayer is normalized."""
        return True

    def layer_drop_path(self, layer: int) -> float:
        """Rate of stochastic depth: a straight line from 0 in the first block to `drop_path` in the last."""
        return self.drop_path * layer / max(self.n_layers - 1, 1)

    def embedded_positions(self, width: int) -> Positions | None:
        """The encoding that enters with tokens `width` wide; None: there is none."""
        if "learned" in self.kinds:
            return LearnedPositions(self.n_positions, width)
        if "sinusoidal" in self.kinds:
            return LearnedPositions(self.n_positions, width, fixed="halves")
        if "network" in self.kinds:
            return NetworkPositions(width, self.n_positions)
        own = own_positions(self)
        return None if own is None or used_by_attention(own) else own

    def attended_positions(self, causal: bool) -> Positions | list[Positions] | None:
        """The encoding that attention uses, one for all layers or one for each; None: there is none."""
        own = own_positions(self)
        needs = own is not None and used_by_attention(own)
        self.require(not needs, f'positions "{self.positions}" are used by attention, which this family has not.')
        return None

    def block(self, layer: int, causal: bool, d_context: int | None = None) -> Block:
        """One block of the stack; `d_context` is the width of what it attends to."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(SequenceConfig):
    n_heads: int = 12
    n_kv_heads: int | None = None  # None: n_heads
    d_head: int | None = None  # None: d_model / n_heads
    d_hidden: int | None = None  # None: 4 · d_model
    activation: str = "gelu"
    gated: bool = False  # a gated feed-forward network (GLU)
    qk_norm: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    hidden_bias: bool = True
    parallel: bool = False  # attention and the network read the same input
    ropes: tuple[RopeConfig, ...] = (RopeConfig(),)  # of rotary positions: of all layers, or as the family says
    n_buckets: int = 32  # of relative positions
    max_distance: int = 128
    mask: str = "all"  # see recipes/settings.py
    score: str = "scaled"  # of a query and a key
    attention_dropout: float | None = 0.0  # None: dropout
    hidden_dropout: float | None = 0.0

    mask_kinds: ClassVar[tuple[str, ...]] = tuple(MASKS)
    position_kinds: ClassVar[tuple[str, ...]] = (*EMBEDDED, *ATTENDED)

    def check(self) -> None:
        super().check()
        whole = self.d_head is not None or self.d_model % self.n_heads == 0
        self.require(whole, f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}.")
        self.require(len(self.ropes) in (1, 2), f"ropes has {len(self.ropes)} entries; it takes one or two.")
        known = self.activation in ACTIVATIONS
        self.require(known, f'activation "{self.activation}" is unknown.{nearest(self.activation, ACTIVATIONS)}')
        both = self.parallel and self.norm_order == "post"
        self.require(not both, 'norm_order "post" normalizes after each sublayer, but parallel adds them at once.')
        check_score(self.score)
        if "relative" in self.kinds:
            self._check_buckets()
        for text in split_masks(self.mask):
            name, _ = check_mask(text, self.mask_kinds)
            self.require(name != "local-2d" or self.grid is not None, f'mask "{text}" is for images, which have rows.')

    def _check_buckets(self) -> None:
        self.require(self.n_buckets >= 4, f"n_buckets is {self.n_buckets}; it must be 4 or more.")
        least = self.n_buckets // 2 + 1  # half of the buckets hold one distance each
        good = self.max_distance >= least
        why = f"max_distance is {self.max_distance}; with n_buckets {self.n_buckets} it must be {least} or more."
        self.require(good, why)

    @property
    def head_width(self) -> int:
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads

    @property
    def hidden(self) -> int:
        return self.d_hidden if self.d_hidden is not None else 4 * self.d_model

    def layer_mask(self, layer: int, causal: bool) -> Mask:
        """What the self-attention of a layer may see."""
        masks = split_masks(self.mask)
        return make_mask(masks[layer % len(masks)], causal, self.grid, self.grid_offset)

    def rotary(self, layer: int) -> Rotary:
        return Rotary(self.head_width, rope=self.ropes[0], trained=self.n_positions)

    def score_scale(self, layer: int) -> float | None:
        """Factor of the scores; None: 1 / √d_head."""
        return 1.0 if self.score == "dot" else None

    def attended_positions(self, causal: bool) -> Positions | list[Positions] | None:
        """The encoding that attention uses, one for all layers or one for each; None: there is none."""
        kind = next((kind for kind in self.kinds if kind in (*ATTENDED, *ATTENDED_2D)), None)
        if kind == "relative":
            return RelativeBuckets(self.n_heads, self.n_buckets, self.max_distance, bidirectional=not causal)
        if kind == "alibi":
            return ALiBi(self.n_heads)
        if kind == "xl":
            return [RelativeXL(self.n_heads, self.head_width, self.d_model) for _ in range(self.n_layers)]
        if kind == "rotary-2d":
            return Rotary2D(self.head_width, self.ropes[0])
        if kind is None:
            own = own_positions(self)
            if own is not None and not used_by_attention(own) and self.grid is not None:
                why = "enter with tokens; images take only those of attention"
                raise ConfigError(f'positions "{self.positions}" {why}.')
            return own if own is not None and used_by_attention(own) else None
        layers: list[Positions] = [self.rotary(layer) for layer in range(self.n_layers)]
        return layers[0] if len({layer.shared_key for layer in layers}) == 1 else layers

    @property
    def visible_prefix(self) -> int:
        masks = [check_mask(text) for text in split_masks(self.mask)]
        return max((numbers[0] for name, numbers in masks if name == "prefix"), default=0)

    def block(self, layer: int, causal: bool, d_context: int | None = None) -> Block:
        return block(self, layer, causal, d_context)


def own_positions(config: SequenceConfig) -> Positions | None:
    """The encoding that a plugin registered, if the settings name one."""
    make = next((plugins.POSITIONS[kind] for kind in config.kinds if kind in plugins.POSITIONS), None)
    return None if make is None else cast("Positions", make(config))


def used_by_attention(positions: Positions) -> bool:
    """Whether an encoding rotates queries and keys or has a bias, and does not enter with the tokens."""
    return type(positions).prepare is not Positions.prepare


def sublayer(config: SequenceConfig, part: nn.Module, layer: int, name: str = "") -> Sublayer:
    """A part with its norms, dropout and residual connection."""
    norm, width, sandwich = config.norm_config, config.d_model, config.norm_order == "sandwich"
    return Sublayer(
        part,
        make_norm(norm, width) if config.has_norm(layer, name) else nn.Identity(),
        order=config.norm_order,
        post_norm=make_norm(norm, width) if sandwich else None,
        dropout=config.dropout,
        drop_path=config.layer_drop_path(layer),
        layer_scale=None if config.layer_scale is None else LayerScale(width, config.layer_scale),
    )


def attention(config: TransformerConfig, layer: int, mask: Mask, d_context: int | None = None) -> Attention:
    settings = AttentionConfig(
        d_query=config.d_model,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_context=d_context,
        d_qk=config.n_heads * config.head_width,
        bias=config.qkv_bias,
        out_bias=config.out_bias,
        scale=config.score_scale(layer),
        qk_norm=config.norm_config if config.qk_norm else None,
        dropout=config.dropout if config.attention_dropout is None else config.attention_dropout,
        mask=mask,
    )
    if config.score_cap is not None:
        scale = config.head_width**-0.5 if settings.scale is None else settings.scale
        return Attention(settings, SoftCappedScore(scale, config.score_cap))
    return Attention(settings, make_score(config.score, config.n_heads, config.head_width))


def feedforward(config: TransformerConfig) -> FeedForward:
    settings = FeedForwardConfig(
        d_model=config.d_model,
        d_hidden=config.hidden,
        activation=config.activation,
        gated=config.gated,
        bias=config.hidden_bias,
        dropout=config.dropout if config.hidden_dropout is None else config.hidden_dropout,
    )
    return FeedForward(settings)


def block(config: TransformerConfig, layer: int, causal: bool = False, d_context: int | None = None) -> Block:
    """Self-attention, cross-attention if `d_context` is the width of what it reads, and a feed-forward network."""
    parts: dict[str, nn.Module] = {"self": attention(config, layer, config.layer_mask(layer, causal))}
    if d_context is not None:
        parts["cross"] = attention(config, layer, NO_MASK, d_context)
    parts["feedforward"] = feedforward(config)
    return Block({name: sublayer(config, part, layer, name) for name, part in parts.items()}, config.parallel)


def stack(
    config: SequenceConfig, causal: bool = False, d_context: int | None = None, final_norm: NormConfig | None = None
) -> Stack:
    """The blocks of a model, with their final norm and the positions that attention uses. `final_norm` replaces the
    one that the settings describe."""
    blocks = [config.block(layer, causal, d_context) for layer in range(config.n_layers)]
    settings = config.norm_config if final_norm is None and config.has_final_norm else final_norm
    norm = make_norm(settings, config.d_model) if settings is not None else None
    positions = config.attended_positions(causal)
    if config.final_dropout:
        return FinalDropoutStack(blocks, norm, positions, config.layer_drop, final_dropout=config.final_dropout)
    return Stack(blocks, norm, positions, config.layer_drop)


def init(config: SequenceConfig) -> InitConfig:
    return InitConfig(std=config.init_std)


def deep_init(config: SequenceConfig) -> InitConfig:
    """What is added to the residual stream starts smaller the deeper the model is."""
    return InitConfig(std=config.init_std, residual_depth=2 * config.n_layers)


def xavier_init(config: SequenceConfig) -> InitConfig:
    """For models that may be narrow, where a fixed spread is too timid."""
    return InitConfig(linear="xavier", embedding_std=config.init_std)
