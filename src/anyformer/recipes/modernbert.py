"""ModernBERT (Warner et al. 2024): as BERT, except that norms come before the sublayers and once at the end, positions
turn queries and keys, the network is gated, nothing has a bias, and two of three layers see a window only and turn
faster than the third, which sees everything. The first layer reads the normalized word vectors as they are.

Published: base 88.4, large 90.4 on GLUE (table 1 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from anyformer.core.block import NormOrder
from anyformer.core.masks import Mask, Window
from anyformer.core.norms import NormConfig
from anyformer.core.positions import Rotary
from anyformer.core.rope import RopeConfig
from anyformer.heads.language import LanguageConfig
from anyformer.heads.pooling import PoolerConfig
from anyformer.recipes.base import TINY
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class ModernBERTConfig(TextEncoderConfig):
    n_layers: int = 22
    d_hidden: int | None = 1152
    vocab_size: int = 50368
    max_length: int = 8192
    gated: bool = True
    norm_eps: float = 1e-5
    norm_order: NormOrder = "pre"
    norm_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    hidden_bias: bool = False
    positions: str = "rotary"
    ropes: tuple[RopeConfig, ...] = (RopeConfig(theta=160_000.0), RopeConfig(theta=10_000.0))
    window: int = 128  # tokens, half of them on either side
    windowed: tuple[bool, ...] = (False, True, True)  # which layers have the window, over and over up to n_layers
    dropout: float = 0.0
    attention_dropout: float | None = 0.0
    padding: int | None = 50283
    head_activation: str = "gelu"  # of the dense layer in front of words and classes
    head_bias: bool = False  # of that layer

    reports_normed = True
    pools: ClassVar[Mapping[str, str]] = {"classify": "gelu", "choice": "gelu"}

    def check(self) -> None:
        super().check()
        self.require(bool(self.windowed), "windowed needs an entry at least.")
        self.require(self.window > 0, f"window is {self.window}; it must be 1 or more.")

    @property
    def windows(self) -> list[bool]:
        """For each layer, whether it has a window."""
        return [self.windowed[i % len(self.windowed)] for i in range(self.n_layers)]

    @property
    def norm_config(self) -> NormConfig:
        return super().norm_config.replace(bias=self.norm_bias)

    def has_norm(self, layer: int, part: str) -> bool:
        return layer > 0 or part != "self"

    def layer_mask(self, layer: int, causal: bool) -> Mask:
        mask, half = super().layer_mask(layer, causal), self.window // 2
        return mask & Window(half, 0 if causal else half) if self.windows[layer] else mask

    def rotary(self, layer: int) -> Rotary:
        rope = self.ropes[-1] if self.windows[layer] else self.ropes[0]
        return Rotary(self.head_width, rope=rope, trained=self.max_length)

    def pooler(self, use: str) -> PoolerConfig | None:
        pooler = super().pooler(use)
        if pooler is None:
            return None
        return pooler.replace(activation=self.head_activation, bias=self.head_bias, norm=self.norm_config)

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(transform=self.head_activation, transform_bias=self.head_bias)


_TINY: dict[str, Any] = {**TINY, "vocab_size": 256, "max_length": 128, "padding": 0}

SIZES = {
    "modernbert-tiny": ModernBERTConfig(**_TINY | {"n_layers": 3}, window=8),
    "modernbert-base": ModernBERTConfig(),
    "modernbert-large": ModernBERTConfig(n_layers=28, d_model=1024, n_heads=16, d_hidden=2624),
}

register("modernbert", ModernBERTConfig, encoder, SIZES)
