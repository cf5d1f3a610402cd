"""DeiT (Touvron et al. 2021): as ViT, except that a second token stands behind the class token and learns what a
teacher says; the answer is the mean of what the two say.

Published: Ti 74.5%, S 81.2%, B 83.4% on ImageNet alone, distilled from a RegNetY-16GF (table 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.heads.classify import DistillationHead
from anyformer.model import Model
from anyformer.recipes.common import TINY, normal_init
from anyformer.recipes.vit import LITE, ViTConfig, assemble, head, images
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class DeiTConfig(ViTConfig):
    head: Literal["base", "classify", "distill"] = "distill"  # type: ignore[assignment]  # "distill": both tokens

    def check(self) -> None:
        super().check()
        self.require(self.pooling == "class", 'DeiT reads its class token; pooling can only be "class".')


def build(config: DeiTConfig) -> Model:
    inputs = images(config).replace(distill_token=True)
    if config.head == "distill":
        return assemble("deit", config, inputs, DistillationHead(config.d_model, config.n_labels, "encoder"))
    return assemble("deit", config, inputs, head(config))


def _size(n_layers: int, d_model: int, n_heads: int) -> DeiTConfig:
    return DeiTConfig(n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_hidden=4 * d_model)


_SMALL = {name: getattr(LITE, name) for name in LITE.field_names() if name not in ("head", "class_token", "pooling")}

SIZES = {
    "deit-tiny": DeiTConfig(**TINY, image_size=(32, 32), patch_size=(8, 8), n_labels=10),
    "deit-cifar": DeiTConfig(**_SMALL),
    #                layers  width  heads
    "deit-ti16": _size(12, 192, 3),
    "deit-s16": _size(12, 384, 6),
    "deit-b16": _size(12, 768, 12),
}

register(Family("deit", DeiTConfig, build, normal_init, __doc__ or ""), SIZES)
