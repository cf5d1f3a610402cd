"""MLP-Mixer on text (Tolstikhin et al. 2021): as GPT-2, except that a network over positions takes the place of
attention. Any two positions are one layer apart, but the weights belong to positions and not to words, and to one
length: a longer text cannot be read at all. With the head "language" its matrices are triangular, so that no word sees
the future; with the others each word sees all.

Published: the paper is about images (87.94% on ImageNet with JFT-300M); on text it serves for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.layers.convolution import TokenMixing, TokenMixingConfig
from anyformer.recipes.ancestors import AncestorConfig, build
from anyformer.recipes.base import deep_init
from anyformer.recipes.builders import register


@dataclass(frozen=True, kw_only=True)
class MLPMixerConfig(AncestorConfig):
    n_layers: int = 8
    d_model: int = 512
    d_hidden: int = 2048
    max_length: int = 128
    activation: str = "gelu"

    @property
    def length_limit(self) -> int:
        return self.max_length

    def parts(self, layer: int, causal: bool) -> dict[str, nn.Module]:
        mixing = TokenMixingConfig(
            d_model=self.d_model, length=self.max_length, activation=self.activation, causal=causal
        )
        network = FeedForwardConfig(d_model=self.d_model, d_hidden=self.d_hidden, activation=self.activation)
        return {"positions": TokenMixing(mixing), "feedforward": FeedForward(network)}


SIZES = {"mlp-mixer-tiny": MLPMixerConfig(n_layers=2, d_model=64, d_hidden=128, max_length=32)}

register("mlp-mixer", MLPMixerConfig, build, SIZES, deep_init)
