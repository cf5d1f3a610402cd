"""Gemma 2 (Gemma Team 2024): as Gemma, except that each sublayer is normalized before and after, every other layer
sees a window only, several query heads share one key and value head, and neither scores nor logits pass a bound that
tanh sets (soft caps).

Published: 2B 51.3% on MMLU, 9B 71.3%, 27B 75.2% (their model card).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.block import NormOrder
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.gemma import GemmaConfig
from anyformer.recipes.llama import TINY


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(GemmaConfig):
    n_layers: int = 26
    d_model: int = 2304
    n_heads: int = 8
    n_kv_heads: int | None = 4
    d_hidden: int | None = 9216
    norm_order: NormOrder = "sandwich"
    scale: float | None = 256.0
    window: int | None = 4096
    windowed: tuple[bool, ...] = (True, False)
    score_cap: float | None = 50.0
    logit_cap: float | None = 30.0

    def check(self) -> None:
        super().check()
        self.require(self.score_cap is None or self.score == "scaled", "score_cap bounds the scaled score only.")


SIZES = {
    "gemma2-tiny": Gemma2Config(**TINY, d_head=24, window=6, scale=20.0),
    "gemma2-2b": Gemma2Config(),
    "gemma2-9b": Gemma2Config(n_layers=42, d_model=3584, n_heads=16, n_kv_heads=8, d_hidden=14336),
    "gemma2-27b": Gemma2Config(
        n_layers=46, d_model=4608, n_heads=32, n_kv_heads=16, d_head=128, d_hidden=36864, scale=144.0
    ),
}

register("gemma2", Gemma2Config, decoder, SIZES)
