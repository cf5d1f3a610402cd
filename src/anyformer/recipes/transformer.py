"""The original Transformer (Vaswani et al. 2017): an encoder, and a decoder that attends to it. Norms after the
sublayers, sinusoidal positions, ReLU, one table for the source words, the target words and the output.

Marian's published translators are the same with SiLU and a fixed bias on the output.

Published: base 27.3 BLEU, big 28.4 BLEU on WMT 2014 English-German (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK, Causal
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, pair_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Settings):
    n_layers: int = 6  # of the encoder
    n_decoder_layers: int | None = None  # None: n_layers
    d_model: int = 512
    n_heads: int = 8
    n_decoder_heads: int | None = None
    d_hidden: int = 2048
    d_decoder_hidden: int | None = None
    vocab_size: int = 37000
    target_vocab_size: int | None = None  # None: one vocabulary for both sides
    max_length: int = 1024
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    layer_drop: float = 0.0
    decoder_layer_drop: float = 0.0
    scale_embedding: bool = True  # multiply word vectors by √d_model
    shared: bool = True  # one table for source and target words
    tied: bool = True  # and for the output
    init_std: float = 0.02
    padding: int | None = 0
    decoder_start: int = 0
    end: int | None = 1

    def check(self) -> None:
        for name, heads in (("n_heads", self.n_heads), ("n_decoder_heads", self.decoder_heads)):
            self.require(self.d_model % heads == 0, f"d_model {self.d_model} is not a multiple of {name} {heads}.")
        both = self.target_vocab_size in (None, self.vocab_size)
        self.require(both or not (self.shared and self.tied), "a shared table needs one vocabulary for both sides.")

    @property
    def decoder_heads(self) -> int:
        return self.n_decoder_heads if self.n_decoder_heads is not None else self.n_heads

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers if self.n_decoder_layers is not None else self.n_layers

    @property
    def decoder_hidden(self) -> int:
        return self.d_decoder_hidden if self.d_decoder_hidden is not None else self.d_hidden

    @property
    def target_words(self) -> int:
        return self.target_vocab_size if self.target_vocab_size is not None else self.vocab_size


def _block(config: TransformerConfig, n_heads: int, d_hidden: int, decodes: bool) -> Block:
    width, mask = config.d_model, Causal() if decodes else NO_MASK
    attention = AttentionConfig(d_query=width, n_heads=n_heads, dropout=config.attention_dropout, mask=mask)
    network = FeedForwardConfig(
        d_model=width, d_hidden=d_hidden, activation=config.activation, dropout=config.hidden_dropout
    )
    memory = width if decodes else None
    return transformer_block(attention, network, d_context=memory, order="post", dropout=config.dropout)


def _inputs(config: TransformerConfig, prefix: str, vocab_size: int) -> TextInput:
    return TextInput(
        TextInputConfig(
            vocab_size=vocab_size,
            d_model=config.d_model,
            prefix=prefix,
            position_ids=False,
            scale=config.d_model**0.5 if config.scale_embedding else 1.0,
            scale_inputs_embeds=prefix == "decoder_",  # as the published code does
            dropout=config.dropout,
            padding=config.padding,
        ),
        LearnedPositions(config.max_length, config.d_model, fixed="halves"),
    )


def share(config: TransformerConfig, source: TextInput, target: TextInput) -> None:
    if config.shared and config.tied:
        target.words.weight = source.words.weight


def language(config: TransformerConfig, target: TextInput) -> LanguageHead:
    settings = LanguageConfig(d_model=config.d_model, vocab_size=config.target_words, stage="decoder", fixed_bias=True)
    return LanguageHead(settings, target.words if config.tied else None)


def pair(
    family: str,
    config: TransformerConfig,
    source: TextInput,
    target: TextInput,
    heads: dict[str, Head],
    shifts_inputs: bool = False,
) -> Model:
    """An encoder and a decoder that attends to it, around the inputs and heads of a family."""
    reads = [_block(config, config.n_heads, config.d_hidden, decodes=False) for _ in range(config.n_layers)]
    n, heads_, hidden = config.decoder_layers, config.decoder_heads, config.decoder_hidden
    writes = [_block(config, heads_, hidden, decodes=True) for _ in range(n)]
    stages = [
        Stage("encoder", source, Stack(reads, layer_drop=config.layer_drop)),
        Stage("decoder", target, Stack(writes, layer_drop=config.decoder_layer_drop), attends="encoder"),
    ]
    report = pair_report(config.n_layers, config.decoder_layers)
    return Model(
        family,
        config,
        stages,
        heads,
        report,
        decoder_start=config.decoder_start,
        padding=config.padding,
        shifts_inputs=shifts_inputs,
    )


def build(config: TransformerConfig) -> Model:
    source = _inputs(config, "", config.vocab_size)
    target = _inputs(config, "decoder_", config.target_words)
    share(config, source, target)
    return pair("transformer", config, source, target, {"language": language(config, target)})


def init(config: TransformerConfig) -> InitConfig:
    # Word vectors are multiplied by √d_model on the way in, so they start that much smaller (as in the authors' code).
    embedding_std = config.d_model**-0.5 if config.scale_embedding else config.init_std
    return InitConfig(linear="xavier", embedding_std=embedding_std)


SIZES = {
    "transformer-tiny": TransformerConfig(**TINY, vocab_size=256, max_length=128),
    "transformer-small": TransformerConfig(
        n_layers=4, d_model=256, n_heads=4, d_hidden=512, dropout=0.3, max_length=256
    ),
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(d_model=1024, n_heads=16, d_hidden=4096, dropout=0.3),
    "marian-opus": TransformerConfig(
        vocab_size=58101, max_length=512, activation="silu", padding=58100, decoder_start=58100, end=0
    ),
}

# Some ten thousands of sentences, such as Multi30k: a large rate, much dropout, the mean of the last checkpoints.
_FEW_PAIRS = {"train.steps": 8000, "train.lr": 2e-3, "train.eval_every": 2000, "train.average_checkpoints": 5}

register(
    Family("transformer", TransformerConfig, build, init, __doc__ or ""),
    SIZES,
    training={"transformer-small": _FEW_PAIRS},
)
