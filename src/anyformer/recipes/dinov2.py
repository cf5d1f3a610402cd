"""DINOv2 (Oquab et al. 2023): as ViT, except that what each sublayer adds is scaled by a learned vector, patches are 14
pixels wide, images may have any size, and a class is told from the class token beside the mean of the patches. It
learned from images alone. The giant has a gated network.

Published: linear probes S/14 81.1%, B/14 84.5%, L/14 86.3%, g/14 86.5% on ImageNet (table 4 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pooling import PoolingConfig
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.images import ImageConfig


@dataclass(frozen=True, kw_only=True)
class DINOv2Config(ImageConfig):
    d_hidden: int | None = None
    mlp_ratio: int = 4  # of the hidden width to d_model; a gated network has two thirds of it
    norm_eps: float = 1e-6
    image_size: tuple[int, ...] = (518, 518)
    patch_size: tuple[int, ...] = (14, 14)
    layer_scale: float | None = 1.0  # where the scale of each sublayer's result starts
    mask_token: bool = False  # replaces patches in bool_masked_pos
    head: Literal["base", "classify"] = "classify"
    n_labels: int = 1000
    problem: Problem | None = None

    grid_offset = 1

    @property
    def hidden(self) -> int:
        width = self.d_hidden if self.d_hidden is not None else self.d_model * self.mlp_ratio
        return (width * 2 // 3 + 7) // 8 * 8 if self.gated and self.d_hidden is None else width

    @property
    def patches(self) -> ImageInputConfig:
        return super().patches.replace(class_token=True, mask_token=self.mask_token, any_size=True)

    def layer_drop_path(self, layer: int) -> float:
        return self.drop_path


def _heads(config: DINOv2Config, inputs: ImageInput) -> dict[str, Head]:
    pooled: dict[str, Any] = {"d_model": config.d_model, "stage": "encoder"}
    if config.head == "base":
        return {"base": EmbeddingHead("encoder", PoolingConfig(**pooled))}
    classify = ClassificationConfig(**pooled, pooling="first_mean", n_labels=config.n_labels, problem=config.problem)
    return {"classify": ClassificationHead(classify)}


def _sized(n_layers: int, d_model: int, n_heads: int, **more: Any) -> DINOv2Config:
    return DINOv2Config(n_layers=n_layers, d_model=d_model, n_heads=n_heads, **more)


SIZES = {
    "dinov2-tiny": _sized(2, 64, 4, image_size=(32, 32), patch_size=(8, 8), mlp_ratio=2, n_labels=10),
    #                  layers  width  heads
    "dinov2-s14": _sized(12, 384, 6),
    "dinov2-b14": _sized(12, 768, 12),
    "dinov2-l14": _sized(24, 1024, 16),
    "dinov2-g14": _sized(40, 1536, 24, gated=True, activation="silu"),
}

register(
    "dinov2", DINOv2Config, partial(encoder, inputs=lambda config: ImageInput(config.patches), heads=_heads), SIZES
)
