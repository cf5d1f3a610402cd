"""The original Transformer (Vaswani et al. 2017): an encoder, and a decoder that attends to it. Norms after the
sublayers, sinusoidal positions, ReLU, one table for the source words, the target words and the output.

Marian's published translators are the same with SiLU and a fixed bias on the output.

Published: base 27.3 BLEU, big 28.4 BLEU on WMT 2014 English-German (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.block import NormOrder
from anyformer.core.init import InitConfig
from anyformer.heads.language import LanguageConfig
from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder_decoder, register
from anyformer.recipes.text import PairConfig


@dataclass(frozen=True, kw_only=True)
class OriginalTransformerConfig(PairConfig):
    n_layers: int = 6  # of the encoder
    d_model: int = 512
    n_heads: int = 8
    d_hidden: int | None = 2048
    vocab_size: int = 37000
    target_vocab_size: int | None = None  # None: one vocabulary for both sides
    max_length: int = 1024
    activation: str = "relu"
    norm_order: NormOrder = "post"
    positions: str = "sinusoidal"
    dropout: float = 0.1
    scale_embedding: bool = True
    shared: bool = True  # one table for source and target words

    scale_inputs_embeds = True  # as the published code does

    def check(self) -> None:
        super().check()
        both = self.target_vocab_size in (None, self.vocab_size)
        self.require(both or not (self.shared and self.tied), "a shared table needs one vocabulary for both sides.")

    @property
    def target_words(self) -> int:
        return self.target_vocab_size if self.target_vocab_size is not None else self.vocab_size

    @property
    def shared_words(self) -> bool:
        return self.shared and self.tied

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(fixed_bias=True)


def init(config: OriginalTransformerConfig) -> InitConfig:
    # Word vectors are multiplied by √d_model on the way in, so they start that much smaller (as in the authors' code).
    embedding_std = config.d_model**-0.5 if config.scale_embedding else config.init_std
    return InitConfig(linear="xavier", embedding_std=embedding_std)


SIZES = {
    "transformer-tiny": OriginalTransformerConfig(**TINY, vocab_size=256, max_length=128),
    "transformer-small": OriginalTransformerConfig(
        n_layers=4, d_model=256, n_heads=4, d_hidden=512, dropout=0.3, max_length=256
    ),
    "transformer-base": OriginalTransformerConfig(),
    "transformer-big": OriginalTransformerConfig(d_model=1024, n_heads=16, d_hidden=4096, dropout=0.3),
    "marian-opus": OriginalTransformerConfig(
        vocab_size=58101, max_length=512, activation="silu", padding=58100, decoder_start=58100, end=0
    ),
}

# Some ten thousands of sentences, such as Multi30k: a large rate, much dropout, the mean of the last checkpoints.
_FEW_PAIRS = {"train.steps": 8000, "train.lr": 2e-3, "train.eval_every": 2000, "train.average_checkpoints": 5}

register("transformer", OriginalTransformerConfig, encoder_decoder, SIZES, init, {"transformer-small": _FEW_PAIRS})
