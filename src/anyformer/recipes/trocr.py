"""Decoder of TrOCR (Li et al. 2021): as the decoder of BART, except that it is a model of its own and may attend to
vectors of another width. Behind a ViT or DeiT (`vision_encoder_decoder`) it reads text from images of lines.

Published: the base model, a BEiT of 384 x 384 with twelve such layers, has a character error rate of 3.42% on IAM's
handwriting and an F1 of 96.34 on SROIE's receipts (tables 3 and 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import Causal
from anyformer.core.norms import NormConfig
from anyformer.core.positions import LearnedPositions, Positions, Sinusoidal
from anyformer.core.stack import Stack
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, check_heads_divide, stack_report, transformer_block
from anyformer.registry import Family, register

ROOM = 2  # learned positions start here; the rows before it were meant for padding


@dataclass(frozen=True, kw_only=True)
class TrOCRConfig(Settings):
    n_layers: int = 12
    d_model: int = 1024
    n_heads: int = 16
    d_hidden: int = 4096
    d_context: int | None = None  # the width of what it attends to; None: d_model
    vocab_size: int = 50265
    max_length: int = 512
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    layer_drop: float = 0.0
    scale_embedding: bool = False  # multiply word vectors by √d_model
    learned_positions: bool = True  # else sinusoids
    norm_embedding: bool = True
    tied: bool = True
    init_std: float = 0.02
    padding: int = 1

    def check(self) -> None:
        check_heads_divide(self)


def _inputs(config: TrOCRConfig) -> TextInput:
    first = ROOM if config.learned_positions else config.padding + 1
    positions: Positions = Sinusoidal(config.d_model, "stretched")
    if config.learned_positions:
        positions = LearnedPositions(config.max_length + ROOM, config.d_model)
    settings = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        position_ids=False,
        first_position=first,
        scale=config.d_model**0.5 if config.scale_embedding else 1.0,
        norm=NormConfig() if config.norm_embedding else None,
        dropout=config.dropout,
        padding=config.padding,
    )
    return TextInput(settings, positions)


def _block(config: TrOCRConfig) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model, n_heads=config.n_heads, dropout=config.attention_dropout, mask=Causal()
    )
    context = config.d_context if config.d_context is not None else config.d_model
    feedforward = FeedForwardConfig(
        d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation, dropout=config.hidden_dropout
    )
    return transformer_block(attention, feedforward, d_context=context, order="post", dropout=config.dropout)


def build(config: TrOCRConfig) -> Model:
    inputs = _inputs(config)
    stack = Stack([_block(config) for _ in range(config.n_layers)], layer_drop=config.layer_drop)
    stage = Stage("decoder", inputs, stack, memory="encoder_hidden_states")
    words = inputs.words if config.tied else None
    head = LanguageHead(LanguageConfig(d_model=config.d_model, vocab_size=config.vocab_size, stage="decoder"), words)
    report = stack_report("decoder", config.n_layers, crosses=True)
    return Model("trocr", config, [stage], {"language": head}, report, padding=config.padding)


def init(config: TrOCRConfig) -> InitConfig:
    return InitConfig(std=config.init_std)


SIZES = {"trocr-tiny": TrOCRConfig(**TINY, vocab_size=256, max_length=128, padding=0, d_context=48)}

register(Family("trocr", TrOCRConfig, build, init, __doc__ or ""), SIZES)
