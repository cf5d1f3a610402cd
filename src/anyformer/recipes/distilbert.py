"""DistilBERT (Sanh et al. 2019): as BERT, except that it has half the layers, no types and no pooler, and a class is
read through a dense layer with ReLU. It learns from a BERT's soft labels (see the distillation objective).

Published: 82.2 on MNLI, 77.7 / 85.8 exact match and F1 on SQuAD 1.1 (tables 1 and 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.positions import LearnedPositions
from anyformer.model import Model
from anyformer.recipes import encoder
from anyformer.recipes.common import TINY, normal_init
from anyformer.recipes.encoder import HeadStyle, TextEncoderConfig
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class DistilBERTConfig(TextEncoderConfig):
    n_layers: int = 6
    class_dropout: float = 0.2  # before the classes of a text; labels of tokens have `dropout`
    span_dropout: float = 0.1


def build(config: DistilBERTConfig) -> Model:
    style = HeadStyle(
        pools={"classify": "relu", "choice": "relu"},
        choice_dropout=config.class_dropout,
        span_dropout=config.span_dropout,
    )
    inputs = encoder.text_input(config, LearnedPositions(config.max_length, config.d_model))
    whole = config.head in ("classify", "choice")
    dropped = config.replace(head_dropout=config.class_dropout) if whole else config
    return encoder.model("distilbert", config, inputs, encoder.heads(dropped, style, inputs))


SIZES = {
    "distilbert-tiny": DistilBERTConfig(**TINY, vocab_size=256, max_length=128),
    "distilbert-base": DistilBERTConfig(),
}

register(Family("distilbert", DistilBERTConfig, build, normal_init, __doc__ or ""), SIZES)
