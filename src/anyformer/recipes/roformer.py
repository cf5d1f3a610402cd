"""RoFormer (Su et al. 2021): as BERT, except that no position is added at the bottom: queries and keys are turned by an
angle that grows with the position, in every layer. Word vectors may be narrower than the model.

Published: 89.5 on MRPC, 80.2 / 79.8 on MNLI for base, against 88.9 and 84.6 / 83.4 of BERT (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.core.positions import Rotary, RotaryWithValues
from anyformer.model import Model
from anyformer.recipes import encoder
from anyformer.recipes.bert import BERTConfig
from anyformer.recipes.common import TINY, normal_init
from anyformer.recipes.encoder import HeadName, HeadStyle
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class RoFormerConfig(BERTConfig):
    vocab_size: int = 50000
    max_length: int = 1536
    d_embedding: int | None = None  # None: d_model
    rotary_value: bool = False
    head: HeadName = "masked"

    uses: ClassVar[tuple[HeadName, ...]] = ("base", "masked", "classify", "tag", "span")


def build(config: RoFormerConfig) -> Model:
    inputs = encoder.text_input(config, n_types=config.n_types, d_embedding=config.d_embedding)
    style = HeadStyle(pools={"classify": config.activation}, drops_first=True, d_words=config.d_embedding)
    turn = RotaryWithValues if config.rotary_value else Rotary
    return encoder.model(
        "roformer",
        config,
        inputs,
        encoder.heads(config, style, inputs),
        turn(config.d_model // config.n_heads, layout="interleaved"),
        causal=config.causal,
        cross_attention=config.cross_attention,
    )


SIZES = {
    "roformer-tiny": RoFormerConfig(**TINY, vocab_size=256, max_length=128),
    "roformer-base": RoFormerConfig(),
}

register(Family("roformer", RoFormerConfig, build, normal_init, __doc__ or ""), SIZES)
