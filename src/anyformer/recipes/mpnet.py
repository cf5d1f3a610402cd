"""MPNet (Song et al. 2020): as RoBERTa, except that there are no types and every attention adds a learned number for
the distance between two tokens, from one table of buckets that all layers share (as T5's). It was trained on permuted
and masked words at once.

Published: base 88.5 on MNLI, 92.7 F1 on SQuAD 1.1 (tables 2 and 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class MPNetConfig(TextEncoderConfig):
    vocab_size: int = 30527
    max_length: int = 514  # rows of the position table, of which two stand for no position
    positions: str = "learned+relative"
    norm_eps: float = 1e-5
    padding: int | None = 1

    drops_first = True
    word_activation = "gelu"
    first_position = 2  # whatever the padding id

    def use_dropout(self, use: str) -> float:
        return self.dropout if use == "choice" else super().use_dropout(use)


SIZES = {
    "mpnet-tiny": MPNetConfig(**TINY, vocab_size=256, max_length=130),
    "mpnet-base": MPNetConfig(),
}

register("mpnet", MPNetConfig, encoder, SIZES)
