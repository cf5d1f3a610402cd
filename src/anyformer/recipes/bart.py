"""BART (Lewis et al. 2020): as the original Transformer, except that positions are learned and start at 2, the sum of
words and positions is normalized, and the activation is GELU. It was trained to restore spoiled text, so that with
nothing else to say the decoder reads its source, shifted by one.

Published: large 44.16 ROUGE-1 on CNN/DailyMail (table 3), 89.9 / 90.1 on MNLI (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder_decoder, register
from anyformer.recipes.transformer import OriginalTransformerConfig


@dataclass(frozen=True, kw_only=True)
class BARTConfig(OriginalTransformerConfig):
    d_model: int = 768
    n_heads: int = 12
    d_hidden: int | None = 3072
    vocab_size: int = 50265
    activation: str = "gelu"
    positions: str = "learned"
    embedding_norm: bool = True
    scale_embedding: bool = False
    padding: int | None = 1
    decoder_start: int = 2
    end: int | None = 2

    scale_inputs_embeds = False
    shifted_from = ("labels", "input_ids")
    first_position = 2  # the rows before it were meant for padding, and are there still

    @property
    def n_positions(self) -> int:
        return self.max_length + self.first_position


SIZES = {
    "bart-tiny": BARTConfig(**TINY, vocab_size=256, max_length=128),
    "bart-base": BARTConfig(),
    "bart-large": BARTConfig(n_layers=12, d_model=1024, n_heads=16, d_hidden=4096),
}

register("bart", BARTConfig, encoder_decoder, SIZES)
