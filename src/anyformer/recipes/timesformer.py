"""TimeSformer (Bertasius et al. 2021): as ViT, except that it sees clips, and that a block attends twice: along the
time of each cell, then over the cells of each frame. Attention over everything at once, and over each frame alone, are
the paper's other two ways.

Published: 78.0% on Kinetics-400, divided attention over 8 frames (table 1 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.linear import Linear
from anyformer.core.norms import make_norm
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.inputs.video import VideoInput, VideoInputConfig
from anyformer.layers.wrappers import AttentionOverSpace, AttentionOverTime
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, PreNormConfig, stack_report, sublayer, xavier_init
from anyformer.registry import Family, register

Attends = Literal["divided", "joint", "space"]


@dataclass(frozen=True, kw_only=True)
class TimeSformerConfig(PreNormConfig):
    n_frames: int = 8
    image_size: tuple[int, ...] = (224, 224)
    patch_size: tuple[int, ...] = (16, 16)
    n_channels: int = 3
    attention_type: Attends = "divided"  # "space": each frame by itself, and a row of the answer for each
    norm_eps: float = 1e-6
    drop_path: float = 0.0
    qkv_bias: bool = True
    head: Literal["classify", "base"] = "classify"
    n_labels: int = 400
    problem: Problem | None = None

    @property
    def inputs(self) -> VideoInputConfig:
        return VideoInputConfig(
            n_frames=self.n_frames,
            image_size=self.image_size,
            tubelet=(1, *self.patch_size),
            d_model=self.d_model,
            n_channels=self.n_channels,
            class_token=True,
            positions="learned-space" if self.attention_type == "space" else "learned",
            dropout=self.dropout,
        )


def _block(config: TimeSformerConfig, drop_path: float) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model, n_heads=config.n_heads, bias=config.qkv_bias, dropout=config.attention_dropout
    )
    feedforward = FeedForwardConfig(
        d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation, dropout=config.dropout
    )
    parts: dict[str, nn.Module] = {"self": Attention(attention)}
    if config.attention_type == "divided":
        project = Linear(config.d_model, config.d_model, residual=True)
        parts = {
            "time": AttentionOverTime(Attention(attention), project),
            "space": AttentionOverSpace(Attention(attention)),
        }
    parts["feedforward"] = FeedForward(feedforward)
    same: dict[str, Any] = {"norm": config.norm, "dropout": config.dropout, "drop_path": drop_path}
    return Block({name: sublayer(part, config.d_model, **same) for name, part in parts.items()})


def build(config: TimeSformerConfig) -> Model:
    n = max(config.n_layers - 1, 1)
    blocks = [_block(config, config.drop_path * i / n) for i in range(config.n_layers)]  # more towards the top
    stack = Stack(blocks, make_norm(config.norm, config.d_model))
    head: Head = EmbeddingHead("encoder")
    if config.head == "classify":
        head = ClassificationHead(
            ClassificationConfig(
                d_model=config.d_model, n_labels=config.n_labels, stage="encoder", problem=config.problem
            )
        )
    looks = "space" if config.attention_type == "divided" else "self"
    report = stack_report("encoder", config.n_layers, looks=looks)
    stages = [Stage("encoder", VideoInput(config.inputs), stack)]
    return Model("timesformer", config, stages, {config.head: head}, report)


SIZES = {
    "timesformer-tiny": TimeSformerConfig(**TINY, n_frames=4, image_size=(32, 32), patch_size=(8, 8), n_labels=10),
    "timesformer-base": TimeSformerConfig(),
    "timesformer-base-joint": TimeSformerConfig(attention_type="joint"),
    "timesformer-high-resolution": TimeSformerConfig(n_frames=16, image_size=(448, 448)),
}

TRAINING: dict[str, dict[str, Any]] = {"timesformer-tiny": {"train.lr": 1e-3, "train.batch_size": 32}}

register(Family("timesformer", TimeSformerConfig, build, xavier_init, __doc__ or ""), SIZES, TRAINING)
