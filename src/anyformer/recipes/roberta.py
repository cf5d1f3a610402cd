"""RoBERTa (Liu et al. 2019): as BERT, except that there is no next-sentence head, positions start behind the padding
id (a table of 514 rows for 512 tokens), types are there but unused, and a class is read through a dense layer of its
own. The rest is training: more text, larger batches, other words masked each time.

Published: base 87.6 on MNLI, large 90.2 / 90.2 and 94.6 F1 on SQuAD 1.1 (tables 5 and 6, appendix of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.recipes.base import TINY
from anyformer.recipes.bert import BERTConfig
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import HeadName, TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class RoBERTaConfig(BERTConfig):
    vocab_size: int = 50265
    max_length: int = 514  # rows of the position table; the first padding + 1 stand for no position
    n_types: int = 1
    norm_eps: float = 1e-5
    padding: int | None = 1
    head: HeadName = "masked"

    uses: ClassVar[tuple[HeadName, ...]] = TextEncoderConfig.uses
    drops_first = True
    word_activation = "gelu"

    @property
    def first_position(self) -> int:
        return self.padding + 1 if self.padding is not None else 0

    def use_dropout(self, use: str) -> float:
        return self.dropout if use == "choice" else super().use_dropout(use)


SIZES = {
    "roberta-tiny": RoBERTaConfig(**TINY, vocab_size=256, max_length=130),
    "roberta-base": RoBERTaConfig(),
    "roberta-large": RoBERTaConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
}

register("roberta", RoBERTaConfig, encoder, SIZES)
