"""What models of images have in common: settings, and the patches that an image is cut into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from anyformer.inputs.image import ImageInputConfig, ImagePositions
from anyformer.recipes.base import TransformerConfig
from anyformer.recipes.settings import ATTENDED, ATTENDED_2D, EMBEDDED, EMBEDDED_2D


@dataclass(frozen=True, kw_only=True)
class ImageConfig(TransformerConfig):
    d_hidden: int | None = 3072
    norm_eps: float = 1e-12
    image_size: tuple[int, ...] = (224, 224)
    patch_size: tuple[int, ...] = (16, 16)
    n_channels: int = 3

    position_kinds: ClassVar[tuple[str, ...]] = (*EMBEDDED, *EMBEDDED_2D, *ATTENDED, *ATTENDED_2D)

    def check(self) -> None:
        super().check()
        self.require(
            len(self.image_size) == len(self.patch_size) == 2, "image_size and patch_size are (rows, columns)."
        )

    @property
    def patches(self) -> ImageInputConfig:
        """Images of one size, cut into patches. A family replaces what is different there."""
        embedded = [kind for kind in self.kinds if kind in (*EMBEDDED, *EMBEDDED_2D)]
        return ImageInputConfig(
            image_size=self.image_size,
            patch_size=self.patch_size,
            n_channels=self.n_channels,
            d_model=self.d_model,
            class_token=False,
            positions=cast("ImagePositions", embedded[0] if embedded else "none"),
            combine=self.positions_combine,
            join=self.positions_combine == "concat",
            dropout=self.dropout,
        )

    @property
    def grid(self) -> tuple[int, int]:
        return self.patches.grid
