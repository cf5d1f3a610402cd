"""GPT-3 (Brown et al. 2020): as GPT-2, except that every other layer sees only a band of the last tokens, texts are
2048 tokens long, and the model is up to a hundred times larger (table 2.1 of the paper).

The paper does not say how wide the band is; 256 is what GPT-Neo took for its replication.

Published: 175B 86.4% on LAMBADA with a few examples (table 3.2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.masks import Mask, Window
from anyformer.recipes.base import deep_init
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.gpt2 import GPT2Config


@dataclass(frozen=True, kw_only=True)
class GPT3Config(GPT2Config):
    max_length: int = 2048
    local_window: int = 256  # tokens that a query of the second, fourth, … layer sees, itself among them

    reports_cross_attentions = False

    def check(self) -> None:
        super().check()
        self.require(self.local_window > 0, f"local_window is {self.local_window}; it must be 1 or more.")

    def layer_mask(self, layer: int, causal: bool) -> Mask:
        mask = super().layer_mask(layer, causal)
        return mask & Window(self.local_window - 1) if layer % 2 else mask


SIZES = {
    "gpt3-tiny": GPT3Config(n_layers=2, d_model=64, n_heads=4, vocab_size=256, max_length=128, local_window=6),
    "gpt3-small": GPT3Config(n_layers=12, d_model=768, n_heads=12),
    "gpt3-medium": GPT3Config(n_layers=24, d_model=1024, n_heads=16),
    "gpt3-large": GPT3Config(n_layers=24, d_model=1536, n_heads=16),
    "gpt3-xl": GPT3Config(
        n_layers=24, d_model=2048, n_heads=16
    ),  # the paper prints 24 heads of 128, which 2048 has not
    "gpt3-2.7b": GPT3Config(n_layers=32, d_model=2560, n_heads=32),
    "gpt3-6.7b": GPT3Config(n_layers=32, d_model=4096, n_heads=32),
    "gpt3-13b": GPT3Config(n_layers=40, d_model=5120, n_heads=40),  # the paper prints a width of 5140
    "gpt3-175b": GPT3Config(n_layers=96, d_model=12288, n_heads=96),
}

register("gpt3", GPT3Config, decoder, SIZES, deep_init)
