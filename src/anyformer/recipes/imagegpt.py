"""ImageGPT (Chen et al. 2020): as GPT-2, except that the words are the colors of an image's pixels, row by row, each
the nearest of 512; norms only divide by the root mean square, the activation is the quick GELU, and the output has a
matrix of its own, without the row of the token that every image begins with.

Published: a linear probe of the large model, trained on ImageNet without labels, is right on 96.3% of CIFAR-10, and on
99.0% after fine-tuning (abstract of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from anyformer.heads.language import LanguageConfig
from anyformer.recipes.base import Norm, deep_init
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.gpt2 import GPT2Config
from anyformer.recipes.text import HeadName


@dataclass(frozen=True, kw_only=True)
class ImageGPTConfig(GPT2Config):
    n_layers: int = 24
    d_model: int = 512
    n_heads: int = 8
    vocab_size: int = 513  # the colors, and after them the token that every image begins with
    max_length: int = 1024  # pixels: rows times columns
    activation: str = "quick_gelu"
    norm: Norm = "rms"
    tied: bool = False
    pooling: Literal["last", "mean"] = "mean"
    n_labels: int = 10

    reads_text = False
    reports_cross_attentions = False
    uses: ClassVar[tuple[HeadName, ...]] = ("language", "base", "classify")

    def check(self) -> None:
        super().check()
        self.require(not self.tied, "tied must be False; the output has one row less than the input.")
        self.require(not self.cross_attention, "cross_attention is not supported.")

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(vocab_size=self.vocab_size - 1)


SIZES = {
    "imagegpt-tiny": ImageGPTConfig(n_layers=2, d_model=64, n_heads=4, vocab_size=257, max_length=64),
    # One to five rounds through the images are too few for dropout to help.
    "imagegpt-cifar": ImageGPTConfig(
        n_layers=8, d_model=384, n_heads=6, dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0
    ),
    #                            layers        width           heads
    "imagegpt-small": ImageGPTConfig(n_layers=24, d_model=512, n_heads=8),
    "imagegpt-medium": ImageGPTConfig(n_layers=36, d_model=1024, n_heads=8),
    "imagegpt-large": ImageGPTConfig(n_layers=48, d_model=1536, n_heads=16),
}

TRAINING: dict[str, dict[str, Any]] = {"imagegpt-cifar": {"train.batch_size": 64}}

register("imagegpt", ImageGPTConfig, decoder, SIZES, deep_init, TRAINING)
