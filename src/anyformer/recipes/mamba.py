"""Mamba (Gu and Dao 2023): as GPT-2, except that a block is one sublayer, a selective state-space mixer in the place of
both attention and feed-forward network, that norms are RMS norms, and that no positions are needed: the recurrence
knows the order. Decoding takes the same memory however long the text is.

Published: 2.8B reaches perplexity 6.22 on the Pile (table 3 of the paper), beside 6.73 of Pythia-2.8B.

Each token sees only those before it; a class is told from the last one, which has seen them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from anyformer.core.init import InitConfig
from anyformer.layers.state_space import SelectiveStateSpace, SelectiveStateSpaceConfig
from anyformer.recipes.ancestors import AncestorConfig, build
from anyformer.recipes.base import Norm
from anyformer.recipes.builders import register
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA


@dataclass(frozen=True, kw_only=True)
class MambaConfig(AncestorConfig):
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
    norm: Norm = "rms"
    padding: int | None = 0
    end: int | None = 0
    pooling: Literal["mean", "max", "first", "last"] = "last"

    cache_name: ClassVar[str] = "cache_params"
    first_hidden: ClassVar[int] = 1
    word_padding = None

    @property
    def inner(self) -> int:
        return self.d_inner if self.d_inner is not None else self.expand * self.d_model

    def parts(self, layer: int, causal: bool) -> dict[str, nn.Module]:
        mixer = SelectiveStateSpaceConfig(
            d_model=self.d_model,
            d_inner=self.inner,
            d_state=self.d_state,
            rank=self.rank if self.rank is not None else math.ceil(self.d_model / 16),
            kernel=self.kernel,
            bias=self.bias,
            conv_bias=self.conv_bias,
            activation=self.activation,
        )
        return {"mixer": SelectiveStateSpace(mixer)}


def init(config: MambaConfig) -> InitConfig:
    return InitConfig(std=config.init_std, residual_depth=config.n_layers)


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

register("mamba", MambaConfig, build, SIZES, init, {"mamba-mini": SMALL_TEXT_DATA})
