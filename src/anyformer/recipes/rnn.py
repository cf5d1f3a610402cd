"""The recurrent ancestors, each as the original Transformer in its job (a source is read, a target written), except
that everything between the words is recurrent.

Sutskever et al. 2014: an LSTM reads the source, from its end, and its last states are the first ones of the LSTM that
writes; `context_every_step` gives the writer that last state with every word too, as the lectures (and Cho et al. 2014)
do.
Bahdanau et al. 2015: a GRU reads the source both ways, and the writer looks it up before every step by an additive
score. Luong et al. 2015: LSTMs in several layers, the source looked up after the step by a dot, general or concat
score, and the result fed to the next step.

The cells are PyTorch's own: its GRU resets the state after the recurrent product and not before, its gates have two
biases, and there are no peephole connections. A fresh LSTM or GRU is drawn as PyTorch draws it.

Published: on WMT 2014 English-French Sutskever 34.81 BLEU (five models, beam 12), Bahdanau 28.45 (RNNsearch-50,
trained longest); on English-German Luong 20.9 (general score with windows, input feeding, unknown words replaced).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput
from anyformer.layers.recurrent import (
    AttentionRNNDecoder,
    AttentionRNNDecoderConfig,
    RNNDecoder,
    RNNDecoderConfig,
    RNNEncoder,
    RNNEncoderConfig,
)
from anyformer.layers.wrappers import RecurrentBlock
from anyformer.model import Model, Stage
from anyformer.recipes.common import encoder_decoder_model, pair_report, text_input_config
from anyformer.recipes.small_data_presets import SMALL_PARALLEL_DATA
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class RNNTranslatorConfig(Settings):
    """What all three say."""

    d_model: int = 1000  # of the words
    d_hidden: int = 1000
    vocab_size: int = 50_000
    target_vocab_size: int | None = None  # None: as many as in the source
    dropout: float = 0.0
    padding: int | None = 0
    decoder_start: int = 0
    end: int = 1

    @property
    def target_words(self) -> int:
        return self.target_vocab_size if self.target_vocab_size is not None else self.vocab_size


@dataclass(frozen=True, kw_only=True)
class SutskeverConfig(RNNTranslatorConfig):
    n_layers: int = 4
    cell: Literal["lstm", "gru"] = "lstm"
    reverse: bool = True  # read the source from its end, so that its beginning stands near the target's
    context_every_step: bool = False  # the source's last state with every target word, and not only as the start


@dataclass(frozen=True, kw_only=True)
class BahdanauConfig(RNNTranslatorConfig):
    d_out: int = 500  # after the maxout


@dataclass(frozen=True, kw_only=True)
class LuongConfig(RNNTranslatorConfig):
    n_layers: int = 4
    score: Literal["dot", "general", "concat"] = "general"
    input_feeding: bool = True  # what a step made goes into the next one, with its word
    reverse: bool = True


def _stage(name: str, config: RNNTranslatorConfig, part: nn.Module, layer: str) -> Stage:
    decodes = name == "decoder"
    inputs = TextInput(text_input_config(config, decodes, config.target_words if decodes else config.vocab_size))
    return Stage(name, inputs, Stack([RecurrentBlock(layer, part)]), attends="encoder" if decodes else None)


def _model(
    family: str, config: RNNTranslatorConfig, encoder: RNNEncoderConfig, decoder: nn.Module, d_out: int
) -> Model:
    attends = isinstance(decoder, AttentionRNNDecoder)
    report = pair_report(1, 1, attentions=("cross_attentions",) if attends else ())
    stages = [
        _stage("encoder", config, RNNEncoder(encoder), "recurrent"),
        _stage("decoder", config, decoder, "cross" if attends else "recurrent"),
    ]
    return encoder_decoder_model(family, config, stages, report, d_out, config.target_words)


def build_sutskever(config: SutskeverConfig) -> Model:
    encoder = RNNEncoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        cell=config.cell,
        n_layers=config.n_layers,
        reverse=config.reverse,
        dropout=config.dropout,
    )
    decoder = RNNDecoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        d_context=config.d_hidden,
        cell=config.cell,
        n_layers=config.n_layers,
        context_every_step=config.context_every_step,
        dropout=config.dropout,
    )
    return _model("sutskever", config, encoder, RNNDecoder(decoder), config.d_hidden)


def build_bahdanau(config: BahdanauConfig) -> Model:
    encoder = RNNEncoderConfig(d_model=config.d_model, d_hidden=config.d_hidden, cell="gru", bidirectional=True)
    decoder = AttentionRNNDecoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        d_context=2 * config.d_hidden,
        d_out=config.d_out,
        cell="gru",
        attend="before",
        score="additive",
        init_state="first",
        dropout=config.dropout,
    )
    return _model("bahdanau", config, encoder, AttentionRNNDecoder(decoder), config.d_out)


def build_luong(config: LuongConfig) -> Model:
    encoder = RNNEncoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        n_layers=config.n_layers,
        reverse=config.reverse,
        dropout=config.dropout,
    )
    decoder = AttentionRNNDecoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        d_context=config.d_hidden,
        d_out=config.d_hidden,
        n_layers=config.n_layers,
        score="additive" if config.score == "concat" else config.score,
        input_feeding=config.input_feeding,
        dropout=config.dropout,
    )
    return _model("luong", config, encoder, AttentionRNNDecoder(decoder), config.d_hidden)


def init(config: RNNTranslatorConfig) -> InitConfig:
    """No norm stands between words and gates: vectors as small as the papers' (0.1) take long to be told apart."""
    return InitConfig(linear="fan_in", embedding_std=1.0)


register(
    Family("sutskever", SutskeverConfig, build_sutskever, init, "RNN encoder-decoder (Sutskever et al. 2014)"),
    {
        "sutskever-tiny": SutskeverConfig(d_model=32, d_hidden=48, vocab_size=256, n_layers=2),
        "sutskever-small": SutskeverConfig(d_model=256, d_hidden=320, n_layers=2, dropout=0.3),
        "sutskever-384m": SutskeverConfig(vocab_size=160_000, target_vocab_size=80_000),
    },
    training={"sutskever-small": SMALL_PARALLEL_DATA},
)
register(
    Family("bahdanau", BahdanauConfig, build_bahdanau, init, "RNN with additive attention (Bahdanau et al. 2015)"),
    {
        "bahdanau-tiny": BahdanauConfig(d_model=32, d_hidden=48, vocab_size=256, d_out=32, dropout=0.1),
        "bahdanau-small": BahdanauConfig(d_model=256, d_hidden=320, d_out=256, dropout=0.3),
        "bahdanau-search50": BahdanauConfig(d_model=620, vocab_size=30_000),
    },
    training={"bahdanau-small": SMALL_PARALLEL_DATA},
)
register(
    Family("luong", LuongConfig, build_luong, init, "RNN with multiplicative attention (Luong et al. 2015)"),
    {
        "luong-tiny": LuongConfig(d_model=32, d_hidden=48, vocab_size=256, n_layers=2, dropout=0.2),
        "luong-small": LuongConfig(d_model=256, d_hidden=320, n_layers=2, dropout=0.3),
        "luong-general": LuongConfig(dropout=0.2),
    },
    training={"luong-small": SMALL_PARALLEL_DATA},
)
