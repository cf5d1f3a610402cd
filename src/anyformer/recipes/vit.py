"""Vision Transformer (Dosovitskiy et al. 2021): as BERT's encoder, except that the tokens are patches of an image
behind a class token, norms come before the sublayers and once at the end, and nothing is normalized at the bottom.

Published: B/16 77.9% on ImageNet from scratch, 84.0% after ImageNet-21k (tables 5 and 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import NO_MASK, Mask
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pooling import PoolerConfig
from anyformer.inputs.image import ImageInput, ImageInputConfig, ImagePositions
from anyformer.model import Model, Stage
from anyformer.recipes.common import (
    TINY,
    check_heads_divide,
    image_input_config,
    normal_init,
    stack_report,
    transformer_block,
)
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class PreNormConfig(Settings):
    """What ViT and its kin say of their blocks."""

    n_layers: int = 12
    d_model: int = 768
    n_heads: int = 12
    d_hidden: int = 3072
    activation: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def check(self) -> None:
        check_heads_divide(self)

    @property
    def norm(self) -> NormConfig:
        return NormConfig(eps=self.norm_eps)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(PreNormConfig):
    d_head: int | None = None  # None: d_model / n_heads
    image_size: tuple[int, ...] = (224, 224)
    patch_size: tuple[int, ...] = (16, 16)
    n_channels: int = 3
    positions: ImagePositions = "learned"
    class_token: bool = True
    pooling: Literal["class", "mean", "attention"] = "class"  # what is classified: the class token, or the patches
    drop_path: float = 0.0  # of the last block; those before it less, in a straight line
    qkv_bias: bool = True
    head: Literal["base", "classify"] = "classify"
    n_labels: int = 1000
    problem: Problem | None = None
    d_pool: int | None = None  # None: d_model
    pool_activation: str = "tanh"

    def check(self) -> None:
        super().check()
        self.require(
            len(self.image_size) == len(self.patch_size) == 2, "image_size and patch_size are (rows, columns)."
        )
        self.require(self.class_token or self.pooling != "class", 'pooling "class" reads a class_token; there is none.')


def encoder_block(
    config: PreNormConfig,
    *,
    drop_path: float = 0.0,
    qkv_bias: bool = True,
    d_head: int | None = None,
    mask: Mask = NO_MASK,
    layer_scale: float | None = None,
) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model,
        n_heads=config.n_heads,
        d_qk=None if d_head is None else config.n_heads * d_head,
        bias=qkv_bias,
        dropout=config.attention_dropout,
        mask=mask,
    )
    network = FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation)
    return transformer_block(
        attention,
        network,
        norm=config.norm,
        dropout=config.dropout,
        drop_path=drop_path,
        layer_scale=layer_scale,
    )


def images(config: ViTConfig) -> ImageInputConfig:
    return image_input_config(config).replace(class_token=config.class_token, positions=config.positions)


def build(config: ViTConfig) -> Model:
    return assemble("vit", config, images(config), head(config))


def assemble(family: str, config: ViTConfig, inputs: ImageInputConfig, head: Head) -> Model:
    """What ViT and those after it have in common."""
    report = stack_report("encoder", config.n_layers)
    return Model(family, config, [Stage("encoder", ImageInput(inputs), _stack(config))], {config.head: head}, report)


def _stack(config: ViTConfig) -> Stack:
    rates = [config.drop_path * (i + 1) / config.n_layers for i in range(config.n_layers)]
    blocks = [encoder_block(config, drop_path=p, qkv_bias=config.qkv_bias, d_head=config.d_head) for p in rates]
    return Stack(blocks, make_norm(config.norm, config.d_model))


def head(config: ViTConfig) -> Head:
    if config.head == "base":
        pool = PoolerConfig(d_model=config.d_model, d_out=config.d_pool, activation=config.pool_activation)
        return EmbeddingHead("encoder", pool)
    return ClassificationHead(
        ClassificationConfig(
            d_model=config.d_model,
            n_labels=config.n_labels,
            stage="encoder",
            pooling="first" if config.pooling == "class" else config.pooling,
            skip=int(config.class_token),
            problem=config.problem,
        )
    )


def _size(n_layers: int, d_model: int, n_heads: int, patch: int = 16) -> ViTConfig:
    return ViTConfig(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_hidden=4 * d_model, patch_size=(patch, patch)
    )


# For images of 32 x 32: ViT-Lite-7/4 of Hassani et al. 2021, which reach 91.4% on CIFAR-10 with it in 200 epochs.
LITE = ViTConfig(
    n_layers=7,
    d_model=256,
    n_heads=4,
    d_hidden=512,
    image_size=(32, 32),
    patch_size=(4, 4),
    norm_eps=1e-6,
    class_token=False,
    pooling="attention",
    drop_path=0.1,
    n_labels=10,
)

# Deeper, with more and narrower heads, it learns more from so few images (Lee et al. 2021: nine layers of 192, heads
# of 16), and by Muon in fewer steps than by AdamW (docs/LOG.md).
CIFAR = LITE.replace(n_layers=9, d_model=192, n_heads=12, d_hidden=704)

SIZES = {
    "vit-tiny": ViTConfig(**TINY, image_size=(32, 32), patch_size=(8, 8), n_labels=10),
    #                layers  width  heads  patch
    "vit-ti16": _size(12, 192, 3),
    "vit-s16": _size(12, 384, 6),
    "vit-b16": _size(12, 768, 12),
    "vit-b32": _size(12, 768, 12, 32),
    "vit-l16": _size(24, 1024, 16),
    "vit-l32": _size(24, 1024, 16, 32),
    "vit-h14": _size(32, 1280, 16, 14),
    "vit-lite": LITE,
    "vit-cifar": CIFAR,
}

register(
    Family("vit", ViTConfig, build, normal_init, __doc__ or ""),
    SIZES,
    training={"vit-cifar": {"train.optimizer": "muon", "train.lr": 1e-3}},
)
