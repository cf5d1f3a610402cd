"""ByteNet (Kalchbrenner et al. 2016): as the original Transformer in its job, except that both sides are dilated
convolutions, causal in the decoder, whose reach doubles from block to block, so that two places are a logarithmic
number of layers apart; and that the decoder is stacked on the encoder, place by place, instead of attending to it.

Past the source's end the decoder reads zeros where the paper lets the encoder run on over padding.

Published: 23.75 BLEU on WMT 2014 English-German, character to character (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.block import Block, Sublayer
from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput
from anyformer.layers.convolution import (
    DilatedConvBlock,
    DilatedConvBlockConfig,
    PositionalCrossInput,
    PositionalCrossInputConfig,
)
from anyformer.model import Model, Stage
from anyformer.recipes.common import encoder_decoder_model, pair_report, sublayer, text_input_config
from anyformer.recipes.small_data_presets import SMALL_PARALLEL_DATA
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class ByteNetConfig(Settings):
    n_sets: int = 6
    n_blocks: int = 5  # in a set; the first reaches 1 token apart, each further one twice as far
    d_model: int = 1600
    kernel: int = 3
    vocab_size: int = 256
    dropout: float = 0.0
    padding: int | None = 0
    decoder_start: int = 0
    end: int = 1

    @property
    def n_layers(self) -> int:
        return self.n_sets * self.n_blocks


def _blocks(config: ByteNetConfig, causal: bool) -> list[Block]:
    blocks = []
    for layer in range(config.n_layers):
        part = DilatedConvBlockConfig(
            d_model=config.d_model,
            d_inner=config.d_model // 2,
            kernel=config.kernel,
            dilation=2 ** (layer % config.n_blocks),
            causal=causal,
        )
        sublayers: dict[str, Sublayer] = {}
        if causal and layer == 0:
            align = PositionalCrossInputConfig(d_model=config.d_model, d_context=config.d_model)
            sublayers["cross"] = Sublayer(PositionalCrossInput(align))
        sublayers["convolution"] = sublayer(DilatedConvBlock(part), config.d_model, dropout=config.dropout)
        blocks.append(Block(sublayers))
    return blocks


def _stage(name: str, config: ByteNetConfig) -> Stage:
    decodes = name == "decoder"
    inputs = TextInput(text_input_config(config, decodes, config.vocab_size).replace(dropout=0.0))
    stack = Stack(_blocks(config, decodes), make_norm(NormConfig(), config.d_model))
    return Stage(name, inputs, stack, attends="encoder" if decodes else None)


def build(config: ByteNetConfig) -> Model:
    report = pair_report(config.n_layers, config.n_layers, attentions=())
    stages = [_stage("encoder", config), _stage("decoder", config)]
    return encoder_decoder_model("bytenet", config, stages, report, config.d_model, config.vocab_size)


def init(config: ByteNetConfig) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=1.0)


SIZES = {
    "bytenet-tiny": ByteNetConfig(n_sets=1, n_blocks=3, d_model=64),
    "bytenet-small": ByteNetConfig(n_sets=2, n_blocks=4, d_model=256, vocab_size=8000, dropout=0.3),
}

register(
    Family("bytenet", ByteNetConfig, build, init, __doc__ or ""), SIZES, training={"bytenet-small": SMALL_PARALLEL_DATA}
)
