"""OCR of text lines for small data sets: as TrOCR (Li et al. 2021), except that convolutions turn a line of any
width into columns, letters are the vocabulary, and while it learns a second head reads the columns by themselves (CTC,
as Watanabe et al. 2017 do it for speech), which teaches where letters stand.

Published: nothing of this size; TrOCR small, with 62 million parameters and 684 million lines read before, has an F1 of
95.86 on SROIE (table 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.core.init import InitConfig
from anyformer.core.positions import Positions, Sinusoidal
from anyformer.heads.base import Head
from anyformer.heads.ctc import CTCHead
from anyformer.heads.language import LanguageConfig
from anyformer.inputs.text_line import TextLineInput
from anyformer.model import Model
from anyformer.recipes.builders import encoder_decoder, register
from anyformer.recipes.common import pair_report
from anyformer.recipes.settings import ATTENDED
from anyformer.recipes.text import HeadName, PairConfig


@dataclass(frozen=True, kw_only=True)
class LineReaderConfig(PairConfig):
    image_size: tuple[int, ...] = (32, 640)  # rows, and the most columns that a line has
    n_channels: int = 1
    widths: tuple[int, ...] = (48, 96, 160, 256)  # channels of the convolutions
    n_layers: int = 4
    n_decoder_layers: int | None = 2
    d_model: int = 256
    n_heads: int = 4
    d_hidden: int | None = 1024
    positions: str = "sinusoidal"
    vocab_size: int = 128
    dropout: float = 0.1
    ctc_weight: float = 0.5  # how much the columns' own reading counts while it learns; 0: there is none
    scale_embedding: bool = True
    tied: bool = False

    uses: ClassVar[tuple[HeadName, ...]] = ("language",)
    position_kinds = ("sinusoidal", *ATTENDED)  # the columns have sinusoids too
    mask_kinds = ("all", "window", "dilated")
    word_padding = None  # padding is also how a line begins

    def check(self) -> None:
        super().check()
        for name in ("padding", "decoder_start", "end"):
            token, n = getattr(self, name), self.vocab_size
            self.require(0 <= token < n, f"{name} is {token}; it must be an id of the vocabulary, 0 to {n - 1}.")

    def embedded_positions(self, width: int) -> Positions | None:
        return Sinusoidal(width) if "sinusoidal" in self.kinds else None

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(bias=True)


def columns(config: LineReaderConfig) -> TextLineInput:
    return TextLineInput(config.image_size[0], config.n_channels, config.widths, config.d_model, config.dropout)


def build(config: LineReaderConfig, family: str) -> Model:
    model = encoder_decoder(config, family, columns)
    model.report = pair_report(config.n_layers, config.decoder_layers)
    if config.ctc_weight:
        assert config.padding is not None and config.end is not None
        spelling = CTCHead(config.d_model, config.vocab_size, "encoder", config.padding, config.end, config.ctc_weight)
        heads: dict[str, Head] = {**model.heads, "spelling": spelling}
        model.set_heads(heads)
    return model


def init(config: LineReaderConfig) -> InitConfig:
    return InitConfig(linear="xavier", embedding_std=config.d_model**-0.5)


SIZES = {
    "line-reader-tiny": LineReaderConfig(
        image_size=(16, 64), widths=(8, 12, 16), n_layers=1, n_decoder_layers=2, d_model=32, d_hidden=64, vocab_size=256
    ),
    "line-reader-small": LineReaderConfig(),
}

register("line-reader", LineReaderConfig, build, SIZES, init)
