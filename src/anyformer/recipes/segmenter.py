"""Segmenter (Strudel et al. 2021): as ViT, except that it says a class for every patch: each patch by itself
("linear"), or after a few more blocks together with one learned query a class, by which query it lies closest to
("mask").

Published: B/16 48.5 (mask) and 48.1 (linear) mIoU on ADE20K at one scale (table 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from anyformer.heads.base import Head
from anyformer.heads.segment import LinearSegmentationHead, MaskSegmentationHead
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.inputs.queries import PatchesAndQueries
from anyformer.model import Model, Stage
from anyformer.recipes.base import TINY, stack
from anyformer.recipes.builders import register
from anyformer.recipes.common import stack_report
from anyformer.recipes.images import ImageConfig


@dataclass(frozen=True, kw_only=True)
class SegmenterConfig(ImageConfig):
    n_decoder_layers: int = 2  # of the "mask" head
    image_size: tuple[int, ...] = (512, 512)
    norm_eps: float = 1e-6
    drop_path: float = 0.1
    head: Literal["linear", "mask"] = "mask"
    n_labels: int = 150

    def check(self) -> None:
        super().check()
        self.require(self.n_labels >= 1, f"n_labels is {self.n_labels}; it must be 1 or more.")

    @property
    def patches(self) -> ImageInputConfig:
        return super().patches.replace(class_token=True, any_size=True)

    @property
    def grid_offset(self) -> int:
        return 1

    @property
    def decoder(self) -> Self:
        """The settings of the decoder, whose patches have their positions already, and stand before queries."""
        return self.replace(n_layers=self.n_decoder_layers, drop_path=0.0, positions="none", mask="all")


def build(config: SegmenterConfig, family: str) -> Model:
    stages = [Stage("encoder", ImageInput(config.patches), stack(config))]
    head: Head = LinearSegmentationHead(config.d_model, config.n_labels, "encoder")
    if config.head == "mask":
        queries = PatchesAndQueries(
            n=config.n_labels, d_model=config.d_model, source="encoder", d_source=config.d_model
        )
        stages.append(Stage("decoder", queries, stack(config.decoder)))
        head = MaskSegmentationHead(config.d_model, config.n_labels, "decoder")
    return Model(family, config, stages, {config.head: head}, stack_report("encoder", config.n_layers))


def _size(n_layers: int, d_model: int, n_heads: int) -> SegmenterConfig:
    return SegmenterConfig(n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_hidden=4 * d_model)


SIZES = {
    "segmenter-tiny": SegmenterConfig(**TINY, image_size=(32, 32), patch_size=(8, 8), n_labels=5, drop_path=0.0),
    "segmenter-mini": SegmenterConfig(
        n_layers=6, d_model=192, n_heads=6, d_hidden=768, image_size=(192, 192), patch_size=(8, 8), drop_path=0.0
    ),
    #                    layers  width  heads
    "segmenter-ti16": _size(12, 192, 3),
    "segmenter-s16": _size(12, 384, 6),
    "segmenter-b16": _size(12, 768, 12),
    "segmenter-l16": _size(24, 1024, 16),
}

register("segmenter", SegmenterConfig, build, SIZES)
