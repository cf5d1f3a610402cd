"""Whisper (Radford et al. 2022): as the original Transformer, except that it hears: two convolutions make an encoder's
token of every 20 ms of a log-mel spectrogram of 30 seconds. Norms come before the sublayers and once at the end, the
decoder's positions are learned, and its first tokens say the language, the task, and whether times are told.

Published: word error rates on LibriSpeech test-clean of 7.5 (tiny), 5.0 (base), 3.4 (small), 2.9 (medium) and 2.7
(large) per cent (table 8 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK, Causal
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.audio import MelConvInput
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import pair_report, stack_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(Settings):
    n_layers: int = 4
    n_decoder_layers: int = 4
    d_model: int = 384
    n_heads: int = 6
    n_decoder_heads: int = 6
    d_hidden: int = 1536
    d_decoder_hidden: int = 1536
    vocab_size: int = 51865
    n_mels: int = 80
    source_length: int = 1500  # tokens of the encoder; a frame of 10 ms is half of one
    max_length: int = 448  # of the decoder's positions
    activation: str = "gelu"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    layer_drop: float = 0.0
    decoder_layer_drop: float = 0.0
    tied: bool = True
    init_std: float = 0.02
    padding: int | None = 50257
    decoder_start: int = 50258
    end: int | None = 50257
    head: Literal["language", "base", "classify"] = "language"
    n_labels: int = 2
    d_pool: int = 256  # of the classifier

    def check(self) -> None:
        for name in ("n_heads", "n_decoder_heads"):
            heads = getattr(self, name)
            self.require(self.d_model % heads == 0, f"d_model {self.d_model} is not a multiple of {name} {heads}.")


def _block(config: WhisperConfig, n_heads: int, d_hidden: int, decodes: bool) -> Block:
    width, mask = config.d_model, Causal() if decodes else NO_MASK
    attention = AttentionConfig(d_query=width, n_heads=n_heads, dropout=config.attention_dropout, mask=mask)
    network = FeedForwardConfig(
        d_model=width, d_hidden=d_hidden, activation=config.activation, dropout=config.hidden_dropout
    )
    return transformer_block(attention, network, d_context=width if decodes else None, dropout=config.dropout)


def _encoder(config: WhisperConfig) -> Stage:
    inputs = MelConvInput(
        n_mels=config.n_mels, n_tokens=config.source_length, d_model=config.d_model, dropout=config.dropout
    )
    blocks = [_block(config, config.n_heads, config.d_hidden, decodes=False) for _ in range(config.n_layers)]
    stack = Stack(blocks, make_norm(NormConfig(), config.d_model), layer_drop=config.layer_drop)
    return Stage("encoder", inputs, stack)


def _decoder(config: WhisperConfig) -> tuple[Stage, TextInput]:
    settings = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        prefix="decoder_",
        dropout=config.dropout,
        padding=config.padding,
    )
    inputs = TextInput(settings, LearnedPositions(config.max_length, config.d_model))
    n, heads, hidden = config.n_decoder_layers, config.n_decoder_heads, config.d_decoder_hidden
    blocks = [_block(config, heads, hidden, decodes=True) for _ in range(n)]
    stack = Stack(blocks, make_norm(NormConfig(), config.d_model), layer_drop=config.decoder_layer_drop)
    return Stage("decoder", inputs, stack, attends="encoder"), inputs


def _classifier(config: WhisperConfig) -> Model:
    head = ClassificationConfig(
        d_model=config.d_model,
        n_labels=config.n_labels,
        stage="encoder",
        pooling="mean",
        d_project=config.d_pool,
        problem="single_label_classification",
    )
    report = stack_report("encoder", config.n_layers, normed=True)
    return Model("whisper", config, [_encoder(config)], {"classify": ClassificationHead(head)}, report)


def build(config: WhisperConfig) -> Model:
    if config.head == "classify":
        return _classifier(config)
    decoder, words = _decoder(config)
    heads: dict[str, Head] = {"embed": EmbeddingHead("decoder")}
    if config.head == "language":
        settings = LanguageConfig(d_model=config.d_model, vocab_size=config.vocab_size, stage="decoder")
        heads = {"language": LanguageHead(settings, words.words if config.tied else None)}
    report = pair_report(config.n_layers, config.n_decoder_layers, normed=(True, True))
    stages = [_encoder(config), decoder]
    return Model("whisper", config, stages, heads, report, decoder_start=config.decoder_start, padding=config.padding)


def init(config: WhisperConfig) -> InitConfig:
    return InitConfig(linear="xavier", embedding_std=config.init_std)


def _size(n_layers: int, d_model: int, n_heads: int, n_decoder_layers: int | None = None, **more: int) -> WhisperConfig:
    return WhisperConfig(
        n_layers=n_layers,
        n_decoder_layers=n_layers if n_decoder_layers is None else n_decoder_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_decoder_heads=n_heads,
        d_hidden=4 * d_model,
        d_decoder_hidden=4 * d_model,
    ).replace(**more)


_SMALL = {"vocab_size": 256, "padding": 250, "end": 250, "decoder_start": 251, "max_length": 64}
_TOY = {**_SMALL, "n_mels": 16, "source_length": 32, "n_labels": 10}
_MINI = {**_SMALL, "n_mels": 80, "source_length": 100}

SIZES = {
    "whisper-toy": _size(2, 64, 4, **_TOY),
    # For a few words, such as spoken digits: windows of two seconds, a small vocabulary.
    "whisper-mini": _size(4, 192, 4, **_MINI).replace(dropout=0.1),
    "whisper-tiny": _size(4, 384, 6),
    "whisper-base": _size(6, 512, 8),
    "whisper-small": _size(12, 768, 12),
    "whisper-medium": _size(24, 1024, 16),
    "whisper-large": _size(32, 1280, 20),
    "whisper-large-v3": _size(32, 1280, 20, vocab_size=51866, n_mels=128),
    "whisper-large-v3-turbo": _size(32, 1280, 20, 4, vocab_size=51866, n_mels=128),
}

register(Family("whisper", WhisperConfig, build, init, __doc__ or ""), SIZES)
