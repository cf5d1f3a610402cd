"""T5 (Raffel et al. 2020): as the original Transformer, except that norms come before the sublayers and only scale
(RMS), nothing has a bias, scores are not divided by √d_head, and positions are a learned number for each bucket of
distances, one table for all layers of a stack. The tied output is scaled down by √d_model. Version 1.1 has gated GELU
networks and an output matrix of its own.

Published: 11B 90.3 on GLUE, small 77.4, base 82.7, large 86.4 (table 14 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK, Causal
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import RelativeBuckets
from anyformer.core.stack import Stack
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.layers.wrappers import FinalDropoutStack
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, pair_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class T5Config(Settings):
    n_layers: int = 6  # of the encoder
    n_decoder_layers: int | None = None  # None: n_layers
    d_model: int = 512
    n_heads: int = 8
    d_head: int = 64
    d_hidden: int = 2048
    vocab_size: int = 32128
    n_buckets: int = 32
    max_distance: int = 128
    activation: str = "relu"
    gated: bool = False
    norm_eps: float = 1e-6
    dropout: float = 0.1
    tied: bool = True  # the output is the word table
    scaled: bool | None = None  # the output's input, by 1 / √d_model; None: where it is tied
    padding: int | None = 0
    decoder_start: int = 0
    end: int | None = 1

    def check(self) -> None:
        self.require(self.n_buckets >= 4, f"n_buckets is {self.n_buckets}; it must be 4 or more.")
        least = self.n_buckets // 2 + 1  # half of the buckets hold one distance each
        self.require(
            self.max_distance >= least,
            f"max_distance is {self.max_distance}; with n_buckets {self.n_buckets} it must be {least} or more.",
        )

    @property
    def scales(self) -> bool:
        return self.tied if self.scaled is None else self.scaled

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers if self.n_decoder_layers is not None else self.n_layers


def _stack(config: T5Config, decodes: bool) -> Stack:
    attention = AttentionConfig(
        d_query=config.d_model,
        n_heads=config.n_heads,
        d_qk=config.n_heads * config.d_head,
        bias=False,
        out_bias=False,
        scale=1.0,
        dropout=config.dropout,
        mask=Causal() if decodes else NO_MASK,
    )
    network = FeedForwardConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        activation=config.activation,
        gated=config.gated,
        bias=False,
        dropout=config.dropout,
    )
    norm = NormConfig(kind="rms", eps=config.norm_eps)
    memory = config.d_model if decodes else None
    blocks = [
        transformer_block(attention, network, d_context=memory, norm=norm, dropout=config.dropout)
        for _ in range(config.decoder_layers if decodes else config.n_layers)
    ]
    positions = RelativeBuckets(config.n_heads, config.n_buckets, config.max_distance, bidirectional=not decodes)
    return FinalDropoutStack(blocks, make_norm(norm, config.d_model), positions, final_dropout=config.dropout)


def _inputs(config: T5Config, prefix: str) -> TextInput:
    return TextInput(
        TextInputConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            prefix=prefix,
            position_ids=False,
            dropout=config.dropout,
        )
    )


def build(config: T5Config) -> Model:
    source, target = _inputs(config, ""), _inputs(config, "decoder_")
    target.words.weight = source.words.weight
    head = LanguageConfig(
        d_model=config.d_model,
        vocab_size=config.vocab_size,
        stage="decoder",
        scale=config.d_model**-0.5 if config.scales else 1.0,
    )
    stages = [
        Stage("encoder", source, _stack(config, decodes=False)),
        Stage("decoder", target, _stack(config, decodes=True), attends="encoder"),
    ]
    report = pair_report(config.n_layers, config.decoder_layers, normed=(True, True))
    heads = {"language": LanguageHead(head, source.words if config.tied else None)}
    start, padding = config.decoder_start, config.padding
    return Model("t5", config, stages, dict(heads), report, decoder_start=start, padding=padding)


def init(config: T5Config) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=1.0)


def _v1_1(n_layers: int, d_model: int, n_heads: int, d_hidden: int) -> T5Config:
    return T5Config(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        d_hidden=d_hidden,
        activation="gelu_tanh",
        gated=True,
        tied=False,
    )


SIZES = {
    "t5-tiny": T5Config(**TINY, d_head=16, vocab_size=256),
    "t5-small": T5Config(),
    "t5-base": T5Config(n_layers=12, d_model=768, n_heads=12, d_hidden=3072),
    "t5-large": T5Config(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
    "t5-3b": T5Config(n_layers=24, d_model=1024, n_heads=32, d_head=128, d_hidden=16384),
    "t5-11b": T5Config(n_layers=24, d_model=1024, n_heads=128, d_head=128, d_hidden=65536),
    #                 layers  width  heads  hidden
    "t5-v1.1-small": _v1_1(8, 512, 6, 1024),
    "t5-v1.1-base": _v1_1(12, 768, 12, 2048),
    "t5-v1.1-large": _v1_1(24, 1024, 16, 2816),
    "t5-v1.1-xl": _v1_1(24, 2048, 32, 5120),
    "t5-v1.1-xxl": _v1_1(24, 4096, 64, 10240),
}

register(Family("t5", T5Config, build, init, __doc__ or ""), SIZES)
