"""Hybrid vision transformer (Dosovitskiy et al. 2021, section 3.1): as ViT, except that patches are cut from the
features of a residual network instead of the image. The paper's network has group norms and standardized weights;
ours is the ResNet of this library, with batch norm.

Published: R50+ViT-B/16 83.6% on ImageNet after JFT-300M for 7 epochs (table 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.layers.resnet import ResNetConfig
from anyformer.recipes.builders import register
from anyformer.recipes.vit import LITE, POOLED, ViTConfig, image_encoder

# Its last stage is left out and its blocks go to the one before, so that a cell is 16 pixels wide.
_R50 = ResNetConfig(depths=(3, 4, 9), widths=(256, 512, 1024), norm="batch")
_SMALL = ResNetConfig(block="basic", d_stem=64, widths=(64, 128), depths=(1, 1), stem="small", norm="batch")


@dataclass(frozen=True, kw_only=True)
class HybridViTConfig(ViTConfig):
    backbone: ResNetConfig = _R50
    patch_size: tuple[int, ...] = (1, 1)  # in cells of the backbone

    def check(self) -> None:
        super().check()
        same = self.backbone.n_channels == self.n_channels
        self.require(same, f"the backbone takes {self.backbone.n_channels} channels, n_channels is {self.n_channels}.")


def _small(n_layers: int, backbone: ResNetConfig) -> HybridViTConfig:
    """As the ViT for images of 32 x 32."""
    return HybridViTConfig(**{**LITE, **POOLED, "n_layers": n_layers, "patch_size": (2, 2), "backbone": backbone})


SIZES = {
    "hybrid-tiny": HybridViTConfig(
        n_layers=2,
        d_model=32,
        n_heads=4,
        d_hidden=64,
        image_size=(32, 32),
        patch_size=(2, 2),
        n_labels=10,
        backbone=_SMALL.replace(d_stem=8, widths=(8, 16)),
    ),
    "hybrid-cifar": _small(5, _SMALL),
    "hybrid-r50-b16": HybridViTConfig(),
    "hybrid-r50-l16": HybridViTConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
}

register("hybrid", HybridViTConfig, image_encoder, SIZES)
