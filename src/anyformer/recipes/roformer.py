"""RoFormer (Su et al. 2021): as BERT, except that no position is added at the bottom: queries and keys are turned by an
angle that grows with the position, in every layer. Word vectors may be narrower than the model.

Published: 89.5 on MRPC, 80.2 / 79.8 on MNLI for base, against 88.9 and 84.6 / 83.4 of BERT (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.core.positions import Rotary, RotaryWithValues
from anyformer.recipes.base import TINY
from anyformer.recipes.bert import BERTConfig
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import HeadName


@dataclass(frozen=True, kw_only=True)
class RoFormerConfig(BERTConfig):
    vocab_size: int = 50000
    max_length: int = 1536
    d_embedding: int | None = None  # None: d_model
    positions: str = "rotary"
    rotary_value: bool = False
    head: HeadName = "masked"

    uses: ClassVar[tuple[HeadName, ...]] = ("base", "masked", "classify", "tag", "span")
    drops_first = True
    reports_cross_attentions = False

    def pool_activation(self, use: str) -> str | None:
        return self.activation if use == "classify" else None

    def rotary(self, layer: int) -> Rotary:
        kind = RotaryWithValues if self.rotary_value else Rotary
        return kind(self.head_width, layout="interleaved", rope=self.ropes[0])


SIZES = {
    "roformer-tiny": RoFormerConfig(**TINY, vocab_size=256, max_length=128),
    "roformer-base": RoFormerConfig(),
}

register("roformer", RoFormerConfig, encoder, SIZES)
