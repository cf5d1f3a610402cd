"""VideoMAE (Tong et al. 2022): as MAE, except that it sees clips: tubelets of two frames, nine tenths of which are
dropped in tubes through all frames; no class token, sines for places, and the mean of all tokens is classified.

Published: B 81.5%, L 85.2%, H 86.6% on Kinetics-400 after fine-tuning (table 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.core.norms import NormConfig
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pixels import VideoPixelHead
from anyformer.inputs.video import MaskedTubesInput, VideoInput, VideoInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.base import stack, xavier_init
from anyformer.recipes.builders import register
from anyformer.recipes.common import stack_report
from anyformer.recipes.mae import AutoencoderConfig


@dataclass(frozen=True, kw_only=True)
class VideoMAEConfig(AutoencoderConfig):
    n_decoder_layers: int = 4
    d_decoder: int = 384
    n_decoder_heads: int = 6
    d_decoder_hidden: int = 1536
    n_frames: int = 16
    tubelet_size: int = 2
    positions: str = "sinusoidal"
    pooling: Literal["first", "mean"] = "mean"
    mask_ratio: float = 0.9
    norm_pix_loss: bool = True
    head: Literal["classify", "pixels", "base"] = "classify"
    n_labels: int = 400
    problem: Problem | None = None

    position_kinds = ("sinusoidal",)

    @property
    def has_final_norm(self) -> bool:
        return self.pooling != "mean"

    @property
    def inputs(self) -> VideoInputConfig:
        return VideoInputConfig(
            n_frames=self.n_frames,
            image_size=self.image_size,
            tubelet=(self.tubelet_size, *self.patch_size),
            d_model=self.d_model,
            n_channels=self.n_channels,
            mask_ratio=self.mask_ratio if self.head == "pixels" else None,
        )


def _head(config: VideoMAEConfig) -> Head:
    if config.head == "pixels":
        tubelet = config.inputs.tubelet
        return VideoPixelHead(config.d_decoder, tubelet, config.n_channels, config.norm_pix_loss, "decoder", "encoder")
    if config.head == "base":
        return EmbeddingHead("encoder")
    return ClassificationHead(
        ClassificationConfig(
            d_model=config.d_model,
            n_labels=config.n_labels,
            stage="encoder",
            pooling=config.pooling,
            norm=NormConfig() if config.pooling == "mean" else None,
            problem=config.problem,
        )
    )


def build(config: VideoMAEConfig, family: str) -> Model:
    stages = [Stage("encoder", VideoInput(config.inputs), stack(config))]
    if config.head == "pixels":
        hidden = MaskedTubesInput("encoder", config.d_model, config.d_decoder, config.inputs.n_tokens)
        stages.append(Stage("decoder", hidden, stack(config.decoder, final_norm=NormConfig())))
    report = stack_report("encoder", config.n_layers)
    return Model(family, config, stages, {config.head: _head(config)}, report)


_TINY = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_hidden": 128, "n_frames": 4}

SIZES = {
    "videomae-tiny": VideoMAEConfig(image_size=(32, 32), patch_size=(8, 8), n_labels=10, **_TINY),  # type: ignore[arg-type]
    "videomae-base": VideoMAEConfig(),
    "videomae-large": VideoMAEConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
    "videomae-base-pretraining": VideoMAEConfig(head="pixels", pooling="first"),
}

register("videomae", VideoMAEConfig, build, SIZES, xavier_init)
