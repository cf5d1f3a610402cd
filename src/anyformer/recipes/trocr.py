"""Decoder of TrOCR (Li et al. 2021): as the decoder of BART, except that it is a model of its own and may attend to
vectors of another width. Behind a ViT or DeiT (`vision_encoder_decoder`) it reads text from images of lines.

Published: the base model, a BEiT of 384 x 384 with twelve such layers, has a character error rate of 3.42% on IAM's
handwriting and an F1 of 96.34 on SROIE's receipts (tables 3 and 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.core.block import NormOrder
from anyformer.core.positions import Positions, Sinusoidal
from anyformer.heads.language import LanguageConfig
from anyformer.model import Model, Stage
from anyformer.recipes.base import TINY, stack
from anyformer.recipes.builders import register
from anyformer.recipes.common import stack_report
from anyformer.recipes.text import DecoderConfig, HeadName, decoder_heads, text_input


@dataclass(frozen=True, kw_only=True)
class TrOCRConfig(DecoderConfig):
    d_model: int = 1024
    n_heads: int = 16
    d_hidden: int | None = 4096
    d_context: int | None = None  # the width of what it attends to; None: d_model
    vocab_size: int = 50265
    norm_order: NormOrder = "post"
    embedding_norm: bool = True
    dropout: float = 0.1
    padding: int | None = 1

    uses: ClassVar[tuple[HeadName, ...]] = ("language",)
    takes_position_ids = False

    @property
    def first_position(self) -> int:
        """The rows before it were meant for padding."""
        return 2 if self.positions != "sinusoidal" or self.padding is None else self.padding + 1

    @property
    def n_positions(self) -> int:
        return self.max_length + self.first_position

    def embedded_positions(self, width: int) -> Positions | None:
        return Sinusoidal(width, "stretched") if "sinusoidal" in self.kinds else super().embedded_positions(width)

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(shift=False, keep=False)


def build(config: TrOCRConfig, family: str) -> Model:
    inputs = text_input(config)
    context = config.d_context if config.d_context is not None else config.d_model
    stage = Stage("decoder", inputs, stack(config, True, context), memory="encoder_hidden_states")
    report = stack_report("decoder", config.n_layers, crosses=True)
    return Model(family, config, [stage], decoder_heads(config, inputs), report, padding=config.padding)


SIZES = {"trocr-tiny": TrOCRConfig(**TINY, vocab_size=256, max_length=128, padding=0, d_context=48)}

register("trocr", TrOCRConfig, build, SIZES)
