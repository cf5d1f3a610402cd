"""Keypoints from learned queries: as DETR, except that there is one learned query for each keypoint of a body or face,
so no matching is needed, and every decoder layer has a loss. Norms come before the sublayers, and the residual network
is small, so that a few thousand images are enough.

Published: nothing in these sizes; TFPose and PRTR (Mao et al. 2021, Li et al. 2021) decode COCO's keypoints so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK, Causal
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Sinusoidal2D
from anyformer.core.stack import Stack
from anyformer.heads.keypoints import KeypointHead
from anyformer.inputs.backbone import BackboneInput
from anyformer.inputs.base import Input
from anyformer.inputs.image import ImageInput
from anyformer.inputs.queries import AutoregressiveQueries, LearnedQueries
from anyformer.layers.resnet import ResNetConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import check_heads_divide, image_input_config, pair_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class KeypointDecoderConfig(Settings):
    image_size: tuple[int, ...] = (128, 128)
    n_channels: int = 3
    n_keypoints: int = 14
    backbone: ResNetConfig | None = None  # None: patches, as ViT has them
    patch_size: tuple[int, ...] = (8, 8)
    n_layers: int = 3
    n_decoder_layers: int = 4
    d_model: int = 192
    n_heads: int = 6
    d_hidden: int = 768
    activation: str = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    autoregressive: bool = False  # one joint after another, each told where the one before is; else all at once

    def check(self) -> None:
        check_heads_divide(self)
        self.require(self.n_keypoints > 0, f"n_keypoints is {self.n_keypoints}; it must be 1 or more.")
        self.require(self.n_decoder_layers > 0, "n_decoder_layers must be 1 or more.")


def _stack(config: KeypointDecoderConfig, n_layers: int, cross: bool) -> Stack:
    mask = Causal() if cross and config.autoregressive else NO_MASK
    attention = AttentionConfig(
        d_query=config.d_model, n_heads=config.n_heads, dropout=config.attention_dropout, mask=mask
    )
    feedforward = FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation)
    memory = config.d_model if cross else None
    same: dict[str, Any] = {"d_context": memory, "dropout": config.dropout, "drop_path": config.drop_path}
    blocks = [transformer_block(attention, feedforward, **same) for _ in range(n_layers)]
    # The head normalizes each layer of the decoder by itself.
    return Stack(blocks, None if cross else make_norm(NormConfig(), config.d_model))


def _images(config: KeypointDecoderConfig) -> Input:
    if config.backbone is not None:
        net = config.backbone.replace(n_channels=config.n_channels)
        return BackboneInput(net, config.d_model, Sinusoidal2D(config.d_model))
    return ImageInput(image_input_config(config).replace(class_token=False, dropout=0.0))


def _queries(config: KeypointDecoderConfig) -> Input:
    if config.autoregressive:
        return AutoregressiveQueries(config.n_keypoints, config.d_model, "encoder")
    return LearnedQueries(config.n_keypoints, config.d_model, "encoder", as_pos_embed=True, prefix="decoder_")


def build(config: KeypointDecoderConfig) -> Model:
    stages = [
        Stage("encoder", _images(config), _stack(config, config.n_layers, cross=False)),
        Stage("decoder", _queries(config), _stack(config, config.n_decoder_layers, cross=True), attends="encoder"),
    ]
    report = pair_report(config.n_layers, config.n_decoder_layers)
    head = KeypointHead(config.d_model, "decoder", "encoder", NormConfig())
    return Model("keypoint-detr", config, stages, {"pose": head}, report)


def init(config: KeypointDecoderConfig) -> InitConfig:
    return InitConfig(linear="xavier", embedding_std=0.5)


# Strides of 8: a stem of 4, and 2 in the second stage.
_NET = ResNetConfig(block="basic", d_stem=48, widths=(48, 96), depths=(2, 2), norm="batch")

SIZES = {
    "keypoint-detr-tiny": KeypointDecoderConfig(
        image_size=(32, 32),
        n_keypoints=5,
        backbone=ResNetConfig(block="basic", d_stem=8, widths=(8, 16), depths=(1, 1), norm="batch"),
        n_layers=1,
        n_decoder_layers=2,
        d_model=32,
        n_heads=4,
        d_hidden=64,
    ),
    "keypoint-detr-96": KeypointDecoderConfig(image_size=(96, 96), n_keypoints=68, n_channels=1, backbone=_NET),
    "keypoint-detr-128": KeypointDecoderConfig(image_size=(128, 128), n_keypoints=14, backbone=_NET),
    "keypoint-detr-vit-128": KeypointDecoderConfig(image_size=(128, 128), n_keypoints=14, n_layers=6),
}

register(Family("keypoint-detr", KeypointDecoderConfig, build, init, __doc__ or ""), SIZES)
