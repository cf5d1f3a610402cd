"""DistilBERT (Sanh et al. 2019): as BERT, except that it has half the layers, no types and no pooler, and a class is
read through a dense layer with ReLU. It learns from a BERT's soft labels (see the distillation objective).

Published: 82.2 on MNLI, 77.7 / 85.8 exact match and F1 on SQuAD 1.1 (tables 1 and 2 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class DistilBERTConfig(TextEncoderConfig):
    n_layers: int = 6
    class_dropout: float = 0.2  # before the classes of a text; labels of tokens have `dropout`
    span_dropout: float = 0.1

    pools: ClassVar[Mapping[str, str]] = {"classify": "relu", "choice": "relu"}

    def use_dropout(self, use: str) -> float:
        special = {"classify": self.class_dropout, "choice": self.class_dropout, "span": self.span_dropout}
        return special.get(use, super().use_dropout(use))


SIZES = {
    "distilbert-tiny": DistilBERTConfig(**TINY, vocab_size=256, max_length=128),
    "distilbert-base": DistilBERTConfig(),
}

register("distilbert", DistilBERTConfig, encoder, SIZES)
