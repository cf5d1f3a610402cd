"""ConvS2S (Gehring et al. 2017): as the original Transformer in its job, except that gated convolutions of a few
neighbors take the place of self-attention, so that two places are a linear number of layers apart; that every decoder
layer looks the source up with one unscaled head; that positions are learned; and that there are no norms: sums are
scaled by √½ instead.

Weight normalization and the scaled-down gradients of the encoder are left out, and all widths are one.

Published: 25.16 BLEU on WMT 2014 English-German (table 1 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.block import Block, Sublayer
from anyformer.core.init import InitConfig
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.inputs.text import TextInput
from anyformer.layers.convolution import DotAttention, DotAttentionConfig, GatedConvolution, GatedConvolutionConfig
from anyformer.layers.wrappers import ScaledResidual
from anyformer.model import Model, Stage
from anyformer.recipes.common import encoder_decoder_model, pair_report, text_input_config
from anyformer.recipes.small_data_presets import SMALL_PARALLEL_DATA
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class ConvS2SConfig(Settings):
    n_layers: int = 15
    d_model: int = 512
    kernel: int = 3
    vocab_size: int = 40_000
    max_length: int = 1024
    dropout: float = 0.1
    padding: int | None = 0
    decoder_start: int = 0
    end: int = 1

    def check(self) -> None:
        self.require(self.kernel % 2 == 1, f"kernel is {self.kernel}; it must be odd, to have a middle.")


class EmbeddingAsPositionsInput(TextInput):
    """Words that every lookup meets again as they came in."""

    def forward(self, run: ForwardContext) -> Tokens:
        tokens = super().forward(run)
        return tokens._replace(pos_embed=tokens.x)


def _block(config: ConvS2SConfig, decodes: bool) -> Block:
    conv = GatedConvolutionConfig(d_model=config.d_model, kernel=config.kernel, causal=decodes, dropout=config.dropout)
    sublayers: dict[str, Sublayer] = {"convolution": ScaledResidual(GatedConvolution(conv))}
    if decodes:
        lookup = DotAttention(DotAttentionConfig(d_model=config.d_model, d_context=config.d_model))
        sublayers["cross"] = ScaledResidual(lookup)
    return Block(sublayers)


def _stage(name: str, config: ConvS2SConfig) -> Stage:
    decodes = name == "decoder"
    words = text_input_config(config, decodes, config.vocab_size)
    inputs = EmbeddingAsPositionsInput(words, LearnedPositions(config.max_length, config.d_model))
    stack = Stack([_block(config, decodes) for _ in range(config.n_layers)])
    return Stage(name, inputs, stack, attends="encoder" if decodes else None)


def build(config: ConvS2SConfig) -> Model:
    report = pair_report(config.n_layers, config.n_layers, attentions=("cross_attentions",))
    stages = [_stage("encoder", config), _stage("decoder", config)]
    return encoder_decoder_model("convs2s", config, stages, report, config.d_model, config.vocab_size)


def init(config: ConvS2SConfig) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=0.1)  # §3.5


SIZES = {
    "convs2s-tiny": ConvS2SConfig(n_layers=3, d_model=64, vocab_size=256, max_length=128),
    "convs2s-small": ConvS2SConfig(n_layers=4, d_model=256, vocab_size=8000, max_length=256, dropout=0.3),
}

register(
    Family("convs2s", ConvS2SConfig, build, init, __doc__ or ""), SIZES, training={"convs2s-small": SMALL_PARALLEL_DATA}
)
