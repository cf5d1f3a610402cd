"""Mamba (Gu and Dao 2023): as GPT-2, except that a block is one sublayer, a selective state-space mixer in the place of
both attention and feed-forward network, that norms are RMS norms, and that no positions are needed: the recurrence
knows the order. Decoding takes the same memory however long the text is.

Published: 2.8B reaches perplexity 6.22 on the Pile (table 3 of the paper), beside 6.73 of Pythia-2.8B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.block import Block
from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.layers.state_space import SelectiveStateSpace, SelectiveStateSpaceConfig
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.common import next_token_head, sublayer
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class MambaConfig(Settings):
    n_layers: int = 24
    d_model: int = 768
    expand: int = 2  # the mixer works in d_model times this many channels
    d_inner: int | None = None  # or in so many
    d_state: int = 16
    rank: int | None = None  # of the step sizes; None: d_model / 16, rounded up
    kernel: int = 4
    vocab_size: int = 50280
    activation: str = "silu"
    bias: bool = False
    conv_bias: bool = True
    norm_eps: float = 1e-5
    tied: bool = True
    padding: int | None = 0
    end: int | None = 0

    @property
    def inner(self) -> int:
        return self.d_inner if self.d_inner is not None else self.expand * self.d_model


def _block(config: MambaConfig) -> Block:
    mixer = SelectiveStateSpaceConfig(
        d_model=config.d_model,
        d_inner=config.inner,
        d_state=config.d_state,
        rank=config.rank if config.rank is not None else math.ceil(config.d_model / 16),
        kernel=config.kernel,
        bias=config.bias,
        conv_bias=config.conv_bias,
        activation=config.activation,
    )
    norm = NormConfig(kind="rms", eps=config.norm_eps)
    return Block({"mixer": sublayer(SelectiveStateSpace(mixer), config.d_model, norm)})


def build(config: MambaConfig) -> Model:
    inputs = TextInput(TextInputConfig(vocab_size=config.vocab_size, d_model=config.d_model, position_ids=False))
    norm = NormConfig(kind="rms", eps=config.norm_eps)
    stack = Stack([_block(config) for _ in range(config.n_layers)], make_norm(norm, config.d_model))
    head = next_token_head(config, inputs)
    report = OutputSpec(
        hidden={"hidden_states": ("decoder", (*range(1, config.n_layers + 1), -1))}, cache="cache_params"
    )
    return Model("mamba", config, [Stage("decoder", inputs, stack)], {"language": head}, report)


def init(config: MambaConfig) -> InitConfig:
    return InitConfig(std=0.02, residual_depth=config.n_layers)


SIZES = {
    #                      layers        width
    "mamba-tiny": MambaConfig(n_layers=2, d_model=64, vocab_size=256),
    "mamba-mini": MambaConfig(n_layers=15, d_model=256),
    "mamba-130m": MambaConfig(n_layers=24, d_model=768),
    "mamba-370m": MambaConfig(n_layers=48, d_model=1024),
    "mamba-790m": MambaConfig(n_layers=48, d_model=1536),
    "mamba-1.4b": MambaConfig(n_layers=48, d_model=2048),
    "mamba-2.8b": MambaConfig(n_layers=64, d_model=2560),
}

register(Family("mamba", MambaConfig, build, init, __doc__ or ""), SIZES, {"mamba-mini": SMALL_TEXT_DATA})
