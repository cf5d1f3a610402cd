"""ImageGPT (Chen et al. 2020): as GPT-2, except that the words are the colors of an image's pixels, row by row, each
the nearest of 512; norms only divide by the root mean square, the activation is the quick GELU, and the output has a
matrix of its own, without the row of the token that every image begins with.

Published: a linear probe of the large model, trained on ImageNet without labels, is right on 96.3% of CIFAR-10, and on
99.0% after fine-tuning (abstract of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from anyformer.core.masks import Causal
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import deep_init, stack_report
from anyformer.recipes.gpt2 import GPT2Config, block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class ImageGPTConfig(GPT2Config):
    n_layers: int = 24
    d_model: int = 512
    n_heads: int = 8
    vocab_size: int = 513  # the colors, and after them the token that every image begins with
    max_length: int = 1024  # pixels: rows times columns
    activation: str = "quick_gelu"
    tied: bool = False
    head: Literal["language", "classify", "base"] = "language"
    n_labels: int = 10
    problem: Problem | None = None

    def check(self) -> None:
        super().check()
        self.require(not self.tied, "tied must be False; the output has one row less than the input.")
        self.require(not self.cross_attention, "cross_attention is not supported.")


def _head(config: ImageGPTConfig) -> Head:
    if config.head == "base":
        return EmbeddingHead("decoder")
    if config.head == "classify":
        classes = ClassificationConfig(
            d_model=config.d_model,
            n_labels=config.n_labels,
            stage="decoder",
            pooling="mean",
            bias=False,
            problem=config.problem,
        )
        return ClassificationHead(classes)
    return LanguageHead(
        LanguageConfig(d_model=config.d_model, vocab_size=config.vocab_size - 1, stage="decoder", shift=True, keep=True)
    )


def build(config: ImageGPTConfig) -> Model:
    inputs = TextInput(
        TextInputConfig(
            vocab_size=config.vocab_size, d_model=config.d_model, types="shared", dropout=config.embedding_dropout
        ),
        LearnedPositions(config.max_length, config.d_model),
    )
    norm = NormConfig(kind="rms", eps=config.norm_eps)
    blocks = [block(config, layer, "pre", Causal(), norm) for layer in range(config.n_layers)]
    stack = Stack(blocks, make_norm(norm, config.d_model))
    report = stack_report("decoder", config.n_layers, normed=True)
    return Model("imagegpt", config, [Stage("decoder", inputs, stack)], {config.head: _head(config)}, report)


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

register(Family("imagegpt", ImageGPTConfig, build, deep_init, __doc__ or ""), SIZES, TRAINING)
