"""T5 (Raffel et al. 2020): as the original Transformer, except that norms come before the sublayers and only scale
(RMS), nothing has a bias, scores are not divided by √d_head, and positions are a learned number for each bucket of
distances, one table for all layers of a stack. The tied output is scaled down by √d_model. Version 1.1 has gated GELU
networks and an output matrix of its own.

Published: 11B 90.3 on GLUE, small 77.4, base 82.7, large 86.4 (table 14 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.core.init import InitConfig
from anyformer.heads.language import LanguageConfig
from anyformer.recipes.base import TINY, Norm
from anyformer.recipes.builders import encoder_decoder, register
from anyformer.recipes.text import PairConfig


@dataclass(frozen=True, kw_only=True)
class T5Config(PairConfig):
    n_layers: int = 6  # of the encoder
    d_model: int = 512
    n_heads: int = 8
    d_head: int | None = 64
    d_hidden: int | None = 2048
    vocab_size: int = 32128
    activation: str = "relu"
    norm: Norm = "rms"
    norm_eps: float = 1e-6
    qkv_bias: bool = False
    out_bias: bool = False
    hidden_bias: bool = False
    positions: str = "relative"
    score: str = "dot"
    dropout: float = 0.1
    attention_dropout: float | None = None
    hidden_dropout: float | None = None
    scaled: bool | None = None  # the output's input, by 1 / √d_model; None: where it is tied

    word_padding = None

    @property
    def final_dropout(self) -> float:
        return self.dropout

    def language(self, stage: str) -> LanguageConfig:
        scales = self.tied if self.scaled is None else self.scaled
        return super().language(stage).replace(scale=self.d_model**-0.5 if scales else 1.0)


def init(config: T5Config) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=1.0)


def _v1_1(n_layers: int, d_model: int, n_heads: int, d_hidden: int) -> T5Config:
    gated: dict[str, Any] = {"activation": "gelu_tanh", "gated": True, "tied": False}
    return T5Config(n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_hidden=d_hidden, **gated)


SIZES = {
    "t5-tiny": T5Config(**TINY, d_head=16, vocab_size=256),
    "t5-small": T5Config(),
    "t5-base": T5Config(n_layers=12, d_model=768, n_heads=12, d_hidden=3072),
    "t5-large": T5Config(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
    "t5-3b": T5Config(n_layers=24, d_model=1024, n_heads=32, d_head=128, d_hidden=16384),
    "t5-11b": T5Config(n_layers=24, d_model=1024, n_heads=128, d_head=128, d_hidden=65536),
    #                 layers  width  heads  hidden
    "t5-v1.1-small": _v1_1(8, 512, 6, 1024),
    "t5-v1.1-base": _v1_1(12, 768, 12, 2048),
    "t5-v1.1-large": _v1_1(24, 1024, 16, 2816),
    "t5-v1.1-xl": _v1_1(24, 2048, 32, 5120),
    "t5-v1.1-xxl": _v1_1(24, 4096, 64, 10240),
}

register("t5", T5Config, encoder_decoder, SIZES, init)
