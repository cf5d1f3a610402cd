"""BART (Lewis et al. 2020): as the original Transformer, except that positions are learned and start at 2, the sum of
words and positions is normalized, and the activation is GELU. It was trained to restore spoiled text, so that with
nothing else to say the decoder reads its source, shifted by one.

Published: large 44.16 ROUGE-1 on CNN/DailyMail (table 3), 89.9 / 90.1 on MNLI (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig
from anyformer.core.positions import LearnedPositions
from anyformer.heads.base import Head
from anyformer.heads.embed import EmbeddingHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model
from anyformer.recipes.common import TINY
from anyformer.recipes.transformer import TransformerConfig, language, pair, share
from anyformer.registry import Family, register

FIRST_POSITION = 2  # the rows before it were meant for padding, and are there still


@dataclass(frozen=True, kw_only=True)
class BARTConfig(TransformerConfig):
    d_model: int = 768
    n_heads: int = 12
    d_hidden: int = 3072
    vocab_size: int = 50265
    activation: str = "gelu"
    scale_embedding: bool = False
    padding: int | None = 1
    decoder_start: int = 2
    end: int | None = 2
    head: Literal["language", "base"] = "language"


def _inputs(config: BARTConfig, prefix: str) -> TextInput:
    settings = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        prefix=prefix,
        position_ids=False,
        first_position=FIRST_POSITION,
        scale=config.d_model**0.5 if config.scale_embedding else 1.0,
        norm=NormConfig(),
        dropout=config.dropout,
        padding=config.padding,
    )
    return TextInput(settings, LearnedPositions(config.max_length + FIRST_POSITION, config.d_model))


def build(config: BARTConfig) -> Model:
    source, target = _inputs(config, ""), _inputs(config, "decoder_")
    share(config, source, target)
    heads: dict[str, Head] = {"embed": EmbeddingHead("decoder")}
    if config.head == "language":
        heads = {"language": language(config, target)}
    return pair("bart", config, source, target, heads, shifts_inputs=True)


def init(config: BARTConfig) -> InitConfig:
    return InitConfig(std=config.init_std)


SIZES = {
    "bart-tiny": BARTConfig(**TINY, vocab_size=256, max_length=128),
    "bart-base": BARTConfig(),
    "bart-large": BARTConfig(n_layers=12, d_model=1024, n_heads=16, d_hidden=4096),
}

register(Family("bart", BARTConfig, build, init, __doc__ or ""), SIZES)
