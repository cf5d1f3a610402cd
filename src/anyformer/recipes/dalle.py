"""DALL-E (Ramesh et al. 2021), a text and then an image in one decoder: as GPT-2, except that after a text of fixed
length, filled up with padding that is read like any other word, come the codes of an image, row by row, with learned
vectors of row and column. Codes are words too: they follow the text's in the vocabulary. What the codes mean is up to
who encodes the image: the colors of a palette, or the numbers of a discrete autoencoder.

Published: with 12 billion parameters its images match MS-COCO's captions better than DF-GAN's in 93.3% of votes,
without having seen them (§3.1 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from anyformer.core.positions import Positions
from anyformer.layers.raster import Raster, RasterPositions
from anyformer.recipes.base import deep_init
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.gpt2 import GPT2Config
from anyformer.recipes.text import HeadName

BYTES = 257  # words of a text that is spelled in bytes: padding, and after it each byte


@dataclass(frozen=True, kw_only=True)
class DalleConfig(GPT2Config):
    n_words: int = 16384  # of the text, its padding among them; the codes come after them
    n_codes: int = 8192
    vocab_size: int = 24576
    text_length: int = 256
    image_size: tuple[int, ...] = (32, 32)  # rows and columns of codes
    max_length: int = 1280

    uses: ClassVar[tuple[HeadName, ...]] = ("language",)
    shared_types = False
    reads_text = False

    def check(self) -> None:
        super().check()
        self.require(len(self.image_size) == 2, f"image_size is {self.image_size}; it is rows and columns of codes.")
        words, places = self.n_words + self.n_codes, self.text_length + self.image_size[0] * self.image_size[1]
        self.require(self.vocab_size == words, f"vocab_size is {self.vocab_size}; words and codes are {words}.")
        self.require(self.max_length == places, f"max_length is {self.max_length}; text and image take {places}.")
        self.require(not self.cross_attention, "cross_attention is not supported.")

    def embedded_positions(self, width: int) -> Positions | None:
        if "learned" not in self.kinds:
            return super().embedded_positions(width)
        rows, columns = self.image_size
        return RasterPositions(rows, columns, Raster(across=columns), width, before=self.text_length)


NO_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}


def sized(text: tuple[int, int], image: tuple[int, int, int], **more: int | float) -> DalleConfig:
    """`text`: how many words there are, and how long it is; `picture`: how many codes, rows, columns."""
    (n_words, length), (n_codes, rows, columns) = text, image
    return DalleConfig(
        n_words=n_words,
        text_length=length,
        n_codes=n_codes,
        image_size=(rows, columns),
        vocab_size=n_words + n_codes,
        max_length=length + rows * columns,
    ).replace(**more)


SIZES = {
    "dalle-tiny": sized((BYTES, 8), (15, 8, 8), n_layers=2, d_model=64, n_heads=4),
    # A text in bytes, such as the name of a class, then 32 x 32 colors of a palette.
    "dalle-cifar": sized((BYTES, 16), (512, 32, 32), n_layers=8, d_model=384, n_heads=6, **NO_DROPOUT),
    "dalle-12b": sized((16384, 256), (8192, 32, 32), n_layers=64, d_model=3968, n_heads=62),
}
TRAINING: dict[str, dict[str, Any]] = {"dalle-cifar": {"train.batch_size": 64}}

register("dalle", DalleConfig, decoder, SIZES, deep_init, TRAINING)
