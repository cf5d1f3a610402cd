"""ViTPose (Xu et al. 2022): as ViT, except that there is no class token, the image is of one person, cut with a
margin of two pixels, and a small decoder turns the grid of tokens into a heat map for each joint.

Published: S 73.8, B 75.8, L 78.3, H 79.1 AP on COCO's keypoints (table 9 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.heads.keypoints import HeatmapConfig, HeatmapHead
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.base import stack
from anyformer.recipes.builders import register
from anyformer.recipes.common import stack_report
from anyformer.recipes.images import ImageConfig

MARGIN = 2  # pixels around the image


@dataclass(frozen=True, kw_only=True)
class ViTPoseConfig(ImageConfig):
    d_hidden: int | None = None  # None: d_model · mlp_ratio
    mlp_ratio: int = 4
    image_size: tuple[int, ...] = (256, 192)
    n_keypoints: int = 17
    decoder: Literal["simple", "classic"] = "simple"
    scale: int = 4  # how much larger than the grid of patches the simple decoder's maps are
    layer: int | None = None  # the head reads the tokens after so many layers; None: after all
    heatmap_sigma: float = 2.0  # of the bells that are learned, in cells of the maps

    def check(self) -> None:
        super().check()
        fits = self.layer is None or 0 <= self.layer <= self.n_layers
        self.require(fits, f"layer is {self.layer}; there are {self.n_layers}.")
        self.require(1 <= self.scale <= 64, f"scale is {self.scale}; it must be 1 or more and at most 64.")

    @property
    def hidden(self) -> int:
        return self.d_hidden if self.d_hidden is not None else self.d_model * self.mlp_ratio

    @property
    def patches(self) -> ImageInputConfig:
        table = "learned" in self.kinds  # which has a row for a class token that is not there
        return super().patches.replace(add_class_position=table, padding=MARGIN)

    @property
    def has_final_norm(self) -> bool:
        """The head normalizes what it reads."""
        return False


def build(config: ViTPoseConfig, family: str) -> Model:
    head = HeatmapConfig(
        d_model=config.d_model,
        n_keypoints=config.n_keypoints,
        stage="encoder",
        decoder=config.decoder,
        scale=config.scale,
        layer=config.n_layers if config.layer is None else config.layer,
        norm=config.norm_config,
        sigma=config.heatmap_sigma,
    )
    stage = Stage("encoder", ImageInput(config.patches), stack(config))
    report = stack_report("encoder", config.n_layers)
    return Model(family, config, [stage], {"pose": HeatmapHead(head)}, report)


SIZES = {
    "vitpose-tiny": ViTPoseConfig(n_layers=2, d_model=64, n_heads=4, image_size=(64, 64), n_keypoints=5),
    "vitpose-mini": ViTPoseConfig(
        n_layers=6, d_model=192, n_heads=6, image_size=(128, 128), patch_size=(8, 8), n_keypoints=14, drop_path=0.1
    ),
    #                  layers       width         heads
    "vitpose-s": ViTPoseConfig(n_layers=12, d_model=384, n_heads=12),
    "vitpose-b": ViTPoseConfig(n_layers=12, d_model=768, n_heads=12),
    "vitpose-l": ViTPoseConfig(n_layers=24, d_model=1024, n_heads=16),
    "vitpose-h": ViTPoseConfig(n_layers=32, d_model=1280, n_heads=16),
}

register("vitpose", ViTPoseConfig, build, SIZES)
