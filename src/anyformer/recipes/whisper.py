"""Whisper (Radford et al. 2022): as the original Transformer, except that it hears: two convolutions make an encoder's
token of every 20 ms of a log-mel spectrogram of 30 seconds. Norms come before the sublayers and once at the end, the
decoder's positions are learned, and its first tokens say the language, the task, and whether times are told.

Published: word error rates on LibriSpeech test-clean of 7.5 (tiny), 5.0 (base), 3.4 (small), 2.9 (medium) and 2.7
(large) per cent (table 8 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.heads.classify import ClassificationConfig, ClassificationHead
from anyformer.inputs.audio import MelConvInput
from anyformer.model import Model, Stage
from anyformer.recipes.base import stack, xavier_init
from anyformer.recipes.builders import encoder_decoder, register
from anyformer.recipes.common import stack_report
from anyformer.recipes.text import HeadName, PairConfig


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(PairConfig):
    n_layers: int = 4
    d_model: int = 384
    n_heads: int = 6
    vocab_size: int = 51865
    n_mels: int = 80
    source_length: int = 1500  # tokens of the encoder; a frame of 10 ms is half of one
    max_length: int = 448  # of the decoder's positions
    padding: int | None = 50257
    decoder_start: int = 50258
    end: int | None = 50257
    d_pool: int = 256  # of the classifier

    uses: ClassVar[tuple[HeadName, ...]] = ("language", "base", "encoder", "classify")
    reads_text = False
    takes_position_ids = True


def _inputs(config: WhisperConfig) -> MelConvInput:
    return MelConvInput(
        n_mels=config.n_mels, n_tokens=config.source_length, d_model=config.d_model, dropout=config.dropout
    )


def build(config: WhisperConfig, family: str) -> Model:
    if config.head != "classify":
        return encoder_decoder(config, family, _inputs)
    head = ClassificationConfig(
        d_model=config.d_model,
        n_labels=config.n_labels,
        stage="encoder",
        pooling="mean",
        d_project=config.d_pool,
        problem="single_label_classification",
    )
    report = stack_report("encoder", config.n_layers, normed=True)
    stage = Stage("encoder", _inputs(config), stack(config))
    return Model(family, config, [stage], {"classify": ClassificationHead(head)}, report)


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

register("whisper", WhisperConfig, build, SIZES, xavier_init)
