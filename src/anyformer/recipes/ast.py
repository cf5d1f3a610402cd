"""Audio Spectrogram Transformer (Gong et al. 2021): as ViT, except that the image is a log-mel spectrogram of one
channel, patches overlap, a second token stands beside the class's, and their mean is what is classified.

Published: AudioSet 0.459 mean average precision, Speech Commands V2 98.1% (tables 1 and 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from anyformer.core.norms import make_norm
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pooling import PoolingConfig
from anyformer.inputs.audio import SpectrogramInput, SpectrogramInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, PreNormConfig, encoder_block, stack_report, xavier_init
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class ASTConfig(PreNormConfig):
    d_head: int | None = None  # None: d_model / n_heads
    n_mels: int = 128
    n_frames: int = 1024  # 10 ms each
    patch_size: int = 16
    mel_stride: int = 10
    frame_stride: int = 10
    drop_path: float = 0.0
    qkv_bias: bool = True
    head: Literal["base", "classify"] = "classify"
    n_labels: int = 527
    problem: Problem | None = None

    @property
    def inputs(self) -> SpectrogramInputConfig:
        return SpectrogramInputConfig(
            n_frames=self.n_frames,
            n_mels=self.n_mels,
            patch_size=(self.patch_size, self.patch_size),
            stride=(self.mel_stride, self.frame_stride),
            d_model=self.d_model,
            dropout=self.dropout,
        )


def build(config: ASTConfig) -> Model:
    same: dict[str, Any] = {"drop_path": config.drop_path, "qkv_bias": config.qkv_bias, "d_head": config.d_head}
    blocks = [encoder_block(config, **same) for _ in range(config.n_layers)]
    stack = Stack(blocks, make_norm(config.norm, config.d_model))
    head: Head = EmbeddingHead("encoder", PoolingConfig(d_model=config.d_model, stage="encoder", pooling="pair"))
    if config.head == "classify":
        head = ClassificationHead(
            ClassificationConfig(
                d_model=config.d_model,
                n_labels=config.n_labels,
                stage="encoder",
                pooling="pair",
                norm=config.norm,
                problem=config.problem,
            )
        )
    report = stack_report("encoder", config.n_layers)
    return Model("ast", config, [Stage("encoder", SpectrogramInput(config.inputs), stack)], {config.head: head}, report)


SIZES = {
    "ast-tiny": ASTConfig(**TINY, n_mels=32, n_frames=48, n_labels=10),
    # For short words, such as spoken digits: 1.28 seconds, 60 patches.
    "ast-small": ASTConfig(
        n_layers=4, d_model=192, n_heads=4, d_hidden=768, n_mels=64, n_frames=128, n_labels=10, dropout=0.1
    ),
    "ast-base": ASTConfig(),
    "ast-base-speech": ASTConfig(n_frames=128, n_labels=35),
}

register(Family("ast", ASTConfig, build, xavier_init, __doc__ or ""), SIZES)
