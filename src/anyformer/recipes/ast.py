"""Audio Spectrogram Transformer (Gong et al. 2021): as ViT, except that the picture is a log-mel spectrogram of one
channel, patches overlap, a second token stands beside the class's, and their mean is what is classified.

Published: AudioSet 0.459 mean average precision, Speech Commands V2 98.1% (tables 1 and 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig
from anyformer.core.stack import Stack, StackConfig
from anyformer.heads.base import Head
from anyformer.heads.classify import Problem
from anyformer.heads.pooled import PooledConfig, PooledEmbedHead, PooledHead
from anyformer.inputs.audio import SpectrogramInput, SpectrogramInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.usual import stack_report, whole_heads
from anyformer.recipes.vit import encoder_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class AST(Settings):
    n_layers: int = 12
    d_model: int = 768
    n_heads: int = 12
    d_head: int | None = None  # None: d_model / n_heads
    d_hidden: int = 3072
    n_mels: int = 128
    n_frames: int = 1024  # 10 ms each
    patch_size: int = 16
    mel_stride: int = 10
    frame_stride: int = 10
    activation: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    qkv_bias: bool = True
    head: Literal["base", "classify"] = "classify"
    n_labels: int = 527
    problem: Problem | None = None

    def check(self) -> None:
        whole_heads(self)

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


def build(config: AST) -> Model:
    block = encoder_block(
        d_model=config.d_model,
        n_heads=config.n_heads,
        d_hidden=config.d_hidden,
        activation=config.activation,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        drop_path=config.drop_path,
        qkv_bias=config.qkv_bias,
        d_head=config.d_head,
    )
    norm = NormConfig(eps=config.norm_eps)
    stack = Stack(StackConfig.repeat(block, config.n_layers, norm), config.d_model)
    head: Head = PooledEmbedHead("encoder", "pair")
    if config.head == "classify":
        head = PooledHead(
            PooledConfig(
                d_model=config.d_model,
                n_labels=config.n_labels,
                reads="encoder",
                pooling="pair",
                norm=norm,
                problem=config.problem,
            )
        )
    report = stack_report("encoder", config.n_layers)
    return Model("ast", config, [Stage("encoder", SpectrogramInput(config.inputs), stack)], {config.head: head}, report)


def init(config: AST) -> InitConfig:
    return InitConfig(linear="xavier", embedding_std=0.02)  # a fixed spread is too timid for narrow models


SIZES = {
    "ast-tiny": AST(n_layers=2, d_model=64, n_heads=4, d_hidden=128, n_mels=32, n_frames=48, n_labels=10),
    # For short words, such as spoken digits: 1.28 seconds, 60 patches.
    "ast-small": AST(
        n_layers=4, d_model=192, n_heads=4, d_hidden=768, n_mels=64, n_frames=128, n_labels=10, dropout=0.1
    ),
    "ast-base": AST(),
    "ast-base-speech": AST(n_frames=128, n_labels=35),
}

register(Family("ast", AST, build, init, __doc__ or ""), SIZES)
