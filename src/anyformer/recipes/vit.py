"""Vision Transformer (Dosovitskiy et al. 2021): as BERT's encoder, except that the tokens are patches of an image
behind a class token, norms come before the sublayers and once at the end, and nothing is normalized at the bottom.

Published: B/16 77.9% on ImageNet from scratch, 84.0% after ImageNet-21k (tables 5 and 6 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, DistillationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pooling import PoolerConfig
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.layers.resnet import ResNetConfig
from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.images import ImageConfig


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ImageConfig):
    class_token: bool = True
    pooling: Literal["class", "mean", "attention"] = "class"  # what is classified: the class token, or the patches
    head: Literal["base", "classify", "distill"] = "classify"
    n_labels: int = 1000
    problem: Problem | None = None
    d_pool: int | None = None  # None: d_model
    pool_activation: str = "tanh"

    uses: ClassVar[tuple[str, ...]] = ("base", "classify")
    distill_token = False

    def check(self) -> None:
        super().check()
        self.require(self.class_token or self.pooling != "class", 'pooling "class" reads a class_token; there is none.')
        self.require(self.head in self.uses, f'head "{self.head}" is not one of {", ".join(self.uses)}.')

    @property
    def backbone(self) -> ResNetConfig | None:
        """A network whose features are cut into patches, instead of the image."""
        return None

    @property
    def patches(self) -> ImageInputConfig:
        return super().patches.replace(class_token=self.class_token, backbone=self.backbone)

    @property
    def grid_offset(self) -> int:
        return int(self.class_token) + self.distill_token


def image_input(config: ViTConfig) -> ImageInput:
    return ImageInput(config.patches.replace(distill_token=config.distill_token))


def image_heads(config: ViTConfig, inputs: ImageInput) -> dict[str, Head]:
    if config.head == "base":
        pool = PoolerConfig(d_model=config.d_model, d_out=config.d_pool, activation=config.pool_activation)
        return {"base": EmbeddingHead("encoder", pool)}
    if config.head == "distill":
        return {"distill": DistillationHead(config.d_model, config.n_labels, "encoder")}
    classify = ClassificationConfig(
        d_model=config.d_model,
        n_labels=config.n_labels,
        stage="encoder",
        pooling="first" if config.pooling == "class" else config.pooling,
        skip=int(config.class_token),
        problem=config.problem,
    )
    return {"classify": ClassificationHead(classify)}


image_encoder = partial(encoder, inputs=image_input, heads=image_heads)


def sized(n_layers: int, d_model: int, n_heads: int, patch: int = 16) -> Mapping[str, Any]:
    size = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_hidden": 4 * d_model}
    return {**size, "patch_size": (patch, patch)}


# For images of 32 x 32: ViT-Lite-7/4 of Hassani et al. 2021, which reach 91.4% on CIFAR-10 with it in 200 epochs.
LITE: dict[str, Any] = {
    **{"n_layers": 7, "d_model": 256, "n_heads": 4, "d_hidden": 512, "image_size": (32, 32), "patch_size": (4, 4)},
    **{"norm_eps": 1e-6, "drop_path": 0.1, "n_labels": 10},
}
POOLED: dict[str, Any] = {"class_token": False, "pooling": "attention"}

SIZES = {
    "vit-tiny": ViTConfig(**TINY, image_size=(32, 32), patch_size=(8, 8), n_labels=10),
    #                       layers  width  heads  patch
    "vit-ti16": ViTConfig(**sized(12, 192, 3)),
    "vit-s16": ViTConfig(**sized(12, 384, 6)),
    "vit-b16": ViTConfig(**sized(12, 768, 12)),
    "vit-b32": ViTConfig(**sized(12, 768, 12, 32)),
    "vit-l16": ViTConfig(**sized(24, 1024, 16)),
    "vit-l32": ViTConfig(**sized(24, 1024, 16, 32)),
    "vit-h14": ViTConfig(**sized(32, 1280, 16, 14)),
    "vit-lite": ViTConfig(**LITE, **POOLED),
    # Deeper, with more and narrower heads, it learns more from so few images (Lee et al. 2021: nine layers of 192,
    # heads of 16), and by Muon in fewer steps than by AdamW (docs/LOG.md).
    "vit-cifar": ViTConfig(**LITE, **POOLED).replace(n_layers=9, d_model=192, n_heads=12, d_hidden=704),
}

register("vit", ViTConfig, image_encoder, SIZES, training={"vit-cifar": {"train.optimizer": "muon", "train.lr": 1e-3}})
