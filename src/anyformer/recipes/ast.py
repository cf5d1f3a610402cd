"""Audio Spectrogram Transformer (Gong et al. 2021): as ViT, except that the image is a log-mel spectrogram of one
channel, patches overlap, a second token stands beside the class's, and their mean is what is classified.

Published: AudioSet 0.459 mean average precision, Speech Commands V2 98.1% (tables 1 and 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pooling import PoolingConfig
from anyformer.inputs.audio import SpectrogramInput, SpectrogramInputConfig
from anyformer.recipes.base import TINY, TransformerConfig, xavier_init
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.settings import ATTENDED, ATTENDED_2D


@dataclass(frozen=True, kw_only=True)
class ASTConfig(TransformerConfig):
    d_hidden: int | None = 3072
    norm_eps: float = 1e-12
    n_mels: int = 128
    n_frames: int = 1024  # 10 ms each
    patch_size: int = 16
    mel_stride: int = 10
    frame_stride: int = 10
    head: Literal["base", "classify"] = "classify"
    n_labels: int = 527
    problem: Problem | None = None

    position_kinds = ("none", "learned", *ATTENDED, *ATTENDED_2D)

    def check(self) -> None:
        super().check()
        self.require(self.positions_combine == "add", 'positions_combine "concat" is not supported.')

    @property
    def grid(self) -> tuple[int, int]:
        return self.inputs.grid

    @property
    def grid_offset(self) -> int:
        return self.inputs.n_tokens

    @property
    def inputs(self) -> SpectrogramInputConfig:
        return SpectrogramInputConfig(
            n_frames=self.n_frames,
            n_mels=self.n_mels,
            patch_size=(self.patch_size, self.patch_size),
            stride=(self.mel_stride, self.frame_stride),
            d_model=self.d_model,
            positions="learned" in self.kinds,
            dropout=self.dropout,
        )


def _inputs(config: ASTConfig) -> SpectrogramInput:
    return SpectrogramInput(config.inputs)


def _heads(config: ASTConfig, inputs: SpectrogramInput) -> dict[str, Head]:
    pooled: dict[str, Any] = {"d_model": config.d_model, "stage": "encoder", "pooling": "pair"}
    if config.head == "base":
        return {"base": EmbeddingHead("encoder", PoolingConfig(**pooled))}
    classify = ClassificationConfig(n_labels=config.n_labels, norm=config.norm_config, problem=config.problem, **pooled)
    return {"classify": ClassificationHead(classify)}


SIZES = {
    "ast-tiny": ASTConfig(**TINY, n_mels=32, n_frames=48, n_labels=10),
    # For short words, such as spoken digits: 1.28 seconds, 60 patches.
    "ast-small": ASTConfig(
        n_layers=4, d_model=192, n_heads=4, d_hidden=768, n_mels=64, n_frames=128, n_labels=10, dropout=0.1
    ),
    "ast-base": ASTConfig(),
    "ast-base-speech": ASTConfig(n_frames=128, n_labels=35),
}

register("ast", ASTConfig, partial(encoder, inputs=_inputs, heads=_heads), SIZES, xavier_init)
