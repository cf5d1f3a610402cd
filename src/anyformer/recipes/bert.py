"""BERT (Devlin et al. 2019): as the encoder of the original Transformer, except that positions are learned, a type
vector tells the two sentences of a pair apart, the sum is normalized, and the activation is GELU. The head follows
the use: pre-training (masked words and next sentence), masked words alone, a class for a sentence or a pair, a label
a token, a span, or the best of several choices.

MiniLM (Wang et al. 2020), the small model inside many sentence encoders, is the same at another size.

Published: base 84.6 / 83.4 on MNLI, large 90.9 F1 on SQuAD 1.1's dev set (tables 1 and 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import HeadName, TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class BERTConfig(TextEncoderConfig):
    n_types: int = 2
    head: HeadName = "pretraining"
    causal: bool = False
    cross_attention: bool = False

    reports_cross_attentions = True

    uses: ClassVar[tuple[HeadName, ...]] = ("pretraining", "next_sentence", *TextEncoderConfig.uses)

    def check(self) -> None:
        super().check()
        self.require(not self.cross_attention or self.causal, "cross_attention needs causal.")


SIZES = {
    "bert-tiny": BERTConfig(**TINY, vocab_size=256, max_length=128),
    "bert-mini": BERTConfig(n_layers=4, d_model=256, n_heads=4, d_hidden=1024),  # Turc et al. 2019
    "bert-base": BERTConfig(),
    "bert-large": BERTConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
    "minilm-l6": BERTConfig(n_layers=6, d_model=384, n_heads=12, d_hidden=1536, head="base"),
}

register("bert", BERTConfig, encoder, SIZES)
