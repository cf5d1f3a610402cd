"""MPNet (Song et al. 2020): as RoBERTa, except that there are no types and every attention adds a learned number for
the distance between two tokens, from one table of buckets that all layers share (as T5's). It was trained on permuted
and masked words at once.

Published: base 88.5 on MNLI, 92.7 F1 on SQuAD 1.1 (tables 2 and 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.positions import LearnedPositions, RelativeBuckets
from anyformer.model import Model
from anyformer.recipes import encoder, roberta
from anyformer.recipes.common import TINY, normal_init
from anyformer.recipes.encoder import TextEncoderConfig
from anyformer.registry import Family, register

FIRST_POSITION = 2  # whatever the padding id


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(TextEncoderConfig):
    vocab_size: int = 30527
    max_length: int = 514  # rows of the position table, of which two stand for no position
    norm_eps: float = 1e-5
    padding: int | None = 1


def build(config: MPNetConfig) -> Model:
    table = LearnedPositions(config.max_length, config.d_model)
    inputs = encoder.text_input(config, table, first_position=FIRST_POSITION)
    heads = encoder.heads(config, roberta.style(config), inputs)
    return encoder.model("mpnet", config, inputs, heads, RelativeBuckets(config.n_heads))


SIZES = {
    "mpnet-tiny": MPNetConfig(**TINY, vocab_size=256, max_length=130),
    "mpnet-base": MPNetConfig(),
}

register(Family("mpnet", MPNetConfig, build, normal_init, __doc__ or ""), SIZES)
