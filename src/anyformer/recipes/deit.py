"""DeiT (Touvron et al. 2021): as ViT, except that a second token stands behind the class token and learns what a
teacher says; the answer is the mean of what the two say.

Published: Ti 74.5%, S 81.2%, B 83.4% on ImageNet alone, distilled from a RegNetY-16GF (table 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from anyformer.recipes.base import TINY
from anyformer.recipes.builders import register
from anyformer.recipes.vit import LITE, ViTConfig, image_encoder, sized


@dataclass(frozen=True, kw_only=True)
class DeiTConfig(ViTConfig):
    head: Literal["base", "classify", "distill"] = "distill"  # "distill": both tokens

    uses: ClassVar[tuple[str, ...]] = ("base", "classify", "distill")
    distill_token = True

    def check(self) -> None:
        super().check()
        self.require(self.pooling == "class", 'DeiT reads its class token; pooling can only be "class".')


SIZES = {
    "deit-tiny": DeiTConfig(**TINY, image_size=(32, 32), patch_size=(8, 8), n_labels=10),
    "deit-cifar": DeiTConfig(**LITE),
    #                         layers  width  heads
    "deit-ti16": DeiTConfig(**sized(12, 192, 3)),
    "deit-s16": DeiTConfig(**sized(12, 384, 6)),
    "deit-b16": DeiTConfig(**sized(12, 768, 12)),
}

register("deit", DeiTConfig, image_encoder, SIZES)
