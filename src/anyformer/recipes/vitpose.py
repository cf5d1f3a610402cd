"""ViTPose (Xu et al. 2022): as ViT, except that there is no class token, the image is of one person, cut with a
margin of two pixels, and a small decoder turns the grid of tokens into a heat map for each joint.

Published: S 73.8, B 75.8, L 78.3, H 79.1 AP on COCO's keypoints (table 9 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.norms import NormConfig
from anyformer.core.stack import Stack
from anyformer.heads.keypoints import HeatmapConfig, HeatmapHead
from anyformer.inputs.image import ImageInput
from anyformer.model import Model, Stage
from anyformer.recipes.common import (
    check_heads_divide,
    image_input_config,
    normal_init,
    stack_report,
    transformer_block,
)
from anyformer.registry import Family, register

MARGIN = 2  # pixels around the image


@dataclass(frozen=True, kw_only=True)
class ViTPoseConfig(Settings):
    n_layers: int = 12
    d_model: int = 768
    n_heads: int = 12
    mlp_ratio: int = 4  # how much wider than d_model the feed-forward layers are
    image_size: tuple[int, ...] = (256, 192)
    patch_size: tuple[int, ...] = (16, 16)
    n_channels: int = 3
    n_keypoints: int = 17
    decoder: Literal["simple", "classic"] = "simple"
    scale: int = 4  # how much larger than the grid of patches the simple decoder's maps are
    layer: int | None = None  # the head reads the tokens after so many layers; None: after all
    activation: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    qkv_bias: bool = True
    heatmap_sigma: float = 2.0  # of the bells that are learned, in cells of the maps

    def check(self) -> None:
        check_heads_divide(self)
        fits = self.layer is None or 0 <= self.layer <= self.n_layers
        self.require(fits, f"layer is {self.layer}; there are {self.n_layers}.")
        self.require(1 <= self.scale <= 64, f"scale is {self.scale}; it must be 1 or more and at most 64.")


def build(config: ViTPoseConfig) -> Model:
    inputs = image_input_config(config).replace(class_token=False, add_class_position=True, padding=MARGIN)
    width, norm = config.d_model, NormConfig(eps=config.norm_eps)
    attention = AttentionConfig(
        d_query=width, n_heads=config.n_heads, bias=config.qkv_bias, dropout=config.attention_dropout
    )
    network = FeedForwardConfig(d_model=width, d_hidden=width * config.mlp_ratio, activation=config.activation)
    same: dict[str, Any] = {"norm": norm, "dropout": config.dropout, "drop_path": config.drop_path}
    blocks = [transformer_block(attention, network, **same) for _ in range(config.n_layers)]
    head = HeatmapConfig(
        d_model=config.d_model,
        n_keypoints=config.n_keypoints,
        stage="encoder",
        decoder=config.decoder,
        scale=config.scale,
        layer=config.n_layers if config.layer is None else config.layer,
        norm=norm,
        sigma=config.heatmap_sigma,
    )
    stage = Stage("encoder", ImageInput(inputs), Stack(blocks))
    report = stack_report("encoder", config.n_layers)
    return Model("vitpose", config, [stage], {"pose": HeatmapHead(head)}, report)


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

register(Family("vitpose", ViTPoseConfig, build, normal_init, __doc__ or ""), SIZES)
