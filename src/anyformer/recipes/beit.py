"""BEiT (Bao et al. 2022): as ViT, except that attention knows how many rows and columns apart two patches are, what
each sublayer adds is scaled by a learned number a feature, keys have no bias, and it is pre-trained to name the visual
words of patches that were covered.

Published: B 85.2%, L 87.4% on ImageNet (table 1 of the paper); B 45.6 mIoU on ADE20K (table 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from anyformer.core.positions import Positions, RelativeGrid
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pooling import PoolingConfig
from anyformer.heads.segment import UPerConfig, UPerHead
from anyformer.heads.tag import VisualTokenHead
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.images import ImageConfig
from anyformer.recipes.settings import ATTENDED, ATTENDED_2D


@dataclass(frozen=True, kw_only=True)
class BEiTConfig(ImageConfig):
    vocab_size: int = 8192  # visual words
    drop_path: float = 0.1  # of the last block; earlier ones less
    layer_scale: float | None = 0.1  # where the scale of each sublayer's result starts; None: there is none
    positions: str = "none"
    relative_position_bias: Literal["none", "each", "shared"] = (
        "each"  # numbers for rows and columns apart: in each block, or one set
    )
    mask_token: bool = False
    pooling: Literal["class", "mean"] = "mean"  # what is classified: the class token, or the patches
    head: Literal["base", "classify", "words", "segment"] = "classify"
    n_labels: int = 1000
    problem: Problem | None = None
    layers: tuple[int, ...] = (2, 4, 6, 10)  # after how many blocks each of segmentation's grids is read
    pools: tuple[int, ...] = (1, 2, 3, 6)
    auxiliary: bool = True  # of segmentation's training
    auxiliary_weight: float = 0.4
    d_auxiliary: int = 256
    n_auxiliary_convs: int = 1
    auxiliary_concat_input: bool = False
    ignore: int = 255  # the class of pixels that do not count

    def check(self) -> None:
        super().check()
        both = self.relative_position_bias != "none" and {*ATTENDED, *ATTENDED_2D} & set(self.kinds)
        self.require(not both, f'positions "{self.positions}" need relative_position_bias "none".')
        if self.head == "segment":
            good = len(self.layers) == 4 and all(-1 <= layer <= self.n_layers for layer in self.layers)
            self.require(good, f"layers is {self.layers}; segmentation reads four of the {self.n_layers}.")

    @property
    def patches(self) -> ImageInputConfig:
        return super().patches.replace(class_token=True, mask_token=self.mask_token, any_size=True)

    @property
    def grid_offset(self) -> int:
        return 1

    @property
    def has_final_norm(self) -> bool:
        return self.pooling != "mean"

    def attended_positions(self, causal: bool) -> Positions | list[Positions] | None:
        if self.relative_position_bias == "none":
            return super().attended_positions(causal)
        if self.relative_position_bias == "shared":
            return RelativeGrid(*self.grid, self.n_heads)
        return [RelativeGrid(*self.grid, self.n_heads) for _ in range(self.n_layers)]


def _head(config: BEiTConfig) -> Head:
    pooled: dict[str, Any] = {"d_model": config.d_model, "stage": "encoder"}
    if config.pooling == "mean":
        pooled |= {"pooling": "mean", "skip": 1, "norm": config.norm_config}
    if config.head == "base":
        return EmbeddingHead("encoder", PoolingConfig(**pooled))
    if config.head == "words":
        return VisualTokenHead(config.d_model, config.vocab_size, config.norm_config, "encoder")
    if config.head == "classify":
        return ClassificationHead(ClassificationConfig(n_labels=config.n_labels, problem=config.problem, **pooled))
    auxiliary = ("auxiliary", "auxiliary_weight", "d_auxiliary", "n_auxiliary_convs")
    names = ("d_model", "n_labels", "pools", "ignore", *auxiliary)
    same = {name: getattr(config, name) for name in (*names, "auxiliary_concat_input", "layers")}
    return UPerHead(UPerConfig(stage="encoder", **same))


def _heads(config: BEiTConfig, inputs: ImageInput) -> dict[str, Head]:
    return {config.head: _head(config)}


def _inputs(config: BEiTConfig) -> ImageInput:
    return ImageInput(config.patches)


_BASE = BEiTConfig()
_LARGE = BEiTConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096, layer_scale=1e-5)
_ADE = {"head": "segment", "image_size": (640, 640), "n_labels": 150}

SIZES = {
    "beit-tiny": BEiTConfig(
        n_layers=4,
        d_model=64,
        n_heads=4,
        d_hidden=128,
        image_size=(32, 32),
        patch_size=(8, 8),
        n_labels=10,
        layers=(1, 2, 3, 4),
        d_auxiliary=32,
    ),
    "beit-b16": _BASE,
    "beit-l16": _LARGE,
    "beit-b16-pretrain": BEiTConfig(head="words", mask_token=True, relative_position_bias="shared", pooling="class"),
    "beit-b16-segment": _BASE.replace(**_ADE),
    "beit-l16-segment": _LARGE.replace(**_ADE, layers=(6, 10, 14, 22)),
}

register("beit", BEiTConfig, partial(encoder, inputs=_inputs, heads=_heads), SIZES)
