"""OCR of text lines for small data sets: as TrOCR (Li et al. 2021), except that convolutions turn a line of any
width into columns, letters are the vocabulary, and while it learns a second head reads the columns by themselves (CTC,
as Watanabe et al. 2017 do it for speech), which teaches where letters stand.

Published: nothing of this size; TrOCR small, with 62 million parameters and 684 million lines read before, has an F1 of
95.86 on SROIE (table 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK, Causal
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Sinusoidal
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.ctc import CTCHead
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.inputs.text_line import TextLineInput
from anyformer.model import Model, Stage
from anyformer.recipes.common import check_heads_divide, pair_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class LineReaderConfig(Settings):
    image_size: tuple[int, ...] = (32, 640)  # rows, and the most columns that a line has
    n_channels: int = 1
    widths: tuple[int, ...] = (48, 96, 160, 256)  # channels of the convolutions
    n_layers: int = 4
    n_decoder_layers: int = 2
    d_model: int = 256
    n_heads: int = 4
    d_hidden: int = 1024
    vocab_size: int = 128
    activation: str = "gelu"
    dropout: float = 0.1
    ctc_weight: float = 0.5  # how much the columns' own reading counts while it learns; 0: there is none
    padding: int = 0
    decoder_start: int = 0
    end: int = 1

    def check(self) -> None:
        check_heads_divide(self)
        for name in ("padding", "decoder_start", "end"):
            token, n = getattr(self, name), self.vocab_size
            self.require(0 <= token < n, f"{name} is {token}; it must be an id of the vocabulary, 0 to {n - 1}.")


def _stack(config: LineReaderConfig, n_layers: int, decodes: bool) -> Stack:
    mask = Causal() if decodes else NO_MASK
    attention = AttentionConfig(d_query=config.d_model, n_heads=config.n_heads, mask=mask)
    network = FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation)
    memory = config.d_model if decodes else None
    blocks = [transformer_block(attention, network, d_context=memory, dropout=config.dropout) for _ in range(n_layers)]
    return Stack(blocks, make_norm(NormConfig(), config.d_model))


def _encoder(config: LineReaderConfig) -> Stage:
    columns = TextLineInput(
        config.image_size[0], config.n_channels, config.widths, config.d_model, dropout=config.dropout
    )
    return Stage("encoder", columns, _stack(config, config.n_layers, decodes=False))


def _decoder(config: LineReaderConfig) -> Stage:
    words = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        prefix="decoder_",
        position_ids=False,
        scale=config.d_model**0.5,
        dropout=config.dropout,
        padding=None,  # which is also how a line begins
    )
    stack = _stack(config, config.n_decoder_layers, decodes=True)
    return Stage("decoder", TextInput(words, Sinusoidal(config.d_model)), stack, attends="encoder")


def build(config: LineReaderConfig) -> Model:
    language = LanguageConfig(d_model=config.d_model, vocab_size=config.vocab_size, stage="decoder", bias=True)
    heads: dict[str, Head] = {"language": LanguageHead(language)}
    if config.ctc_weight:
        heads["spelling"] = CTCHead(
            config.d_model, config.vocab_size, "encoder", config.padding, config.end, config.ctc_weight
        )
    report = pair_report(config.n_layers, config.n_decoder_layers)
    start, padding = config.decoder_start, config.padding
    stages = [_encoder(config), _decoder(config)]
    return Model("line-reader", config, stages, heads, report, decoder_start=start, padding=padding)


def init(config: LineReaderConfig) -> InitConfig:
    return InitConfig(linear="xavier", embedding_std=config.d_model**-0.5)


SIZES = {
    "line-reader-tiny": LineReaderConfig(
        image_size=(16, 64), widths=(8, 12, 16), n_layers=1, n_decoder_layers=2, d_model=32, d_hidden=64, vocab_size=256
    ),
    "line-reader-small": LineReaderConfig(),
}

register(Family("line-reader", LineReaderConfig, build, init, __doc__ or ""), SIZES)
