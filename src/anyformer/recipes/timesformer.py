"""TimeSformer (Bertasius et al. 2021): as ViT, except that it sees clips, and that a block attends twice: along the
time of each cell, then over the cells of each frame. Attention over everything at once, and over each frame alone, are
the paper's other two ways.

Published: 78.0% on Kinetics-400, divided attention over 8 frames (table 1 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from anyformer.core.block import Block
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.inputs.video import VideoInput, VideoInputConfig
from anyformer.layers.wrappers import AttentionOverSpace, AttentionOverTime
from anyformer.model import Model, Stage
from anyformer.recipes.base import TINY, attention, feedforward, stack, sublayer, xavier_init
from anyformer.recipes.builders import register
from anyformer.recipes.common import stack_report
from anyformer.recipes.images import ImageConfig

Attends = Literal["divided", "joint", "space"]


@dataclass(frozen=True, kw_only=True)
class TimeSformerConfig(ImageConfig):
    n_frames: int = 8
    attention_type: Attends = "divided"  # "space": each frame by itself, and a row of the answer for each
    norm_eps: float = 1e-6
    hidden_dropout: float | None = None
    head: Literal["classify", "base"] = "classify"
    n_labels: int = 400
    problem: Problem | None = None

    position_kinds = ("learned",)  # of cells and of frames
    mask_kinds = ("all",)

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

    def block(self, layer: int, causal: bool, d_context: int | None = None) -> Block:
        if self.attention_type != "divided":
            return super().block(layer, causal, d_context)
        project = Linear(self.d_model, self.d_model, residual=True)
        parts: dict[str, nn.Module] = {
            "time": AttentionOverTime(attention(self, layer, NO_MASK), project),
            "space": AttentionOverSpace(attention(self, layer, NO_MASK)),
            "feedforward": feedforward(self),
        }
        return Block({name: sublayer(self, part, layer) for name, part in parts.items()}, self.parallel)


def build(config: TimeSformerConfig, family: str) -> Model:
    head: Head = EmbeddingHead("encoder")
    if config.head == "classify":
        head = ClassificationHead(
            ClassificationConfig(
                d_model=config.d_model, n_labels=config.n_labels, stage="encoder", problem=config.problem
            )
        )
    looks = "space" if config.attention_type == "divided" else "self"
    report = stack_report("encoder", config.n_layers, looks=looks)
    stages = [Stage("encoder", VideoInput(config.inputs), stack(config))]
    return Model(family, config, stages, {config.head: head}, report)


SIZES = {
    "timesformer-tiny": TimeSformerConfig(**TINY, n_frames=4, image_size=(32, 32), patch_size=(8, 8), n_labels=10),
    "timesformer-base": TimeSformerConfig(),
    "timesformer-base-joint": TimeSformerConfig(attention_type="joint"),
    "timesformer-high-resolution": TimeSformerConfig(n_frames=16, image_size=(448, 448)),
}

TRAINING: dict[str, dict[str, Any]] = {"timesformer-tiny": {"train.lr": 1e-3, "train.batch_size": 32}}

register("timesformer", TimeSformerConfig, build, SIZES, xavier_init, TRAINING)
