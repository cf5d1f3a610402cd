"""MLP-Mixer on text (Tolstikhin et al. 2021): as GPT-2, except that a network over positions
takes the place of attention. Any two places are one layer apart, but the weights belong to places and not to words, and
to one length: a longer text cannot be read at all. Its matrices are triangular, so that no word sees the future.

Published: the paper is about images (87.94% on ImageNet with JFT-300M); on text it serves for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anyformer.config import Settings
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.layers.convolution import TokenMixing, TokenMixingConfig
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.common import deep_init, next_token_head, sublayer
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class MLPMixerConfig(Settings):
    n_layers: int = 8
    d_model: int = 512
    d_hidden: int = 2048
    vocab_size: int = 256
    max_length: int = 128
    dropout: float = 0.0
    tied: bool = True


def _block(config: MLPMixerConfig) -> Block:
    parts: dict[str, nn.Module] = {
        "positions": TokenMixing(TokenMixingConfig(d_model=config.d_model, length=config.max_length)),
        "feedforward": FeedForward(FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden)),
    }
    return Block({name: sublayer(part, config.d_model, dropout=config.dropout) for name, part in parts.items()})


def build(config: MLPMixerConfig) -> Model:
    inputs = TextInput(TextInputConfig(vocab_size=config.vocab_size, d_model=config.d_model, position_ids=False))
    stack = Stack([_block(config) for _ in range(config.n_layers)], make_norm(NormConfig(), config.d_model))
    head = next_token_head(config, inputs)
    report = OutputSpec(hidden={"hidden_states": ("decoder", (*range(config.n_layers), -1))})
    return Model("mlp-mixer", config, [Stage("decoder", inputs, stack)], {"language": head}, report)


SIZES = {"mlp-mixer-tiny": MLPMixerConfig(n_layers=2, d_model=64, d_hidden=128, max_length=32)}

register(Family("mlp-mixer", MLPMixerConfig, build, deep_init, __doc__ or ""), SIZES)
