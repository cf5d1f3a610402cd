"""Llama (Touvron et al. 2023): as GPT-2, except that positions turn queries and keys instead of being added, norms are
RMS norms, the feed-forward network is gated with SiLU, several query heads share one key and value head, nothing has a
bias, and the output has a table of its own. Llama 3.1 stretches the rotation to longer texts.

The fields with which the kin differ (windows, query and key norms, sandwich norms) are here too; each of them is a
recipe of its own. SmolLM2 is this family as it stands.

Published: Llama 2 7B 45.3% on MMLU, Llama 3 8B 66.6% (their model cards); SmolLM2 1.7B 68.7% on HellaSwag (its own).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.core.masks import Mask, Window
from anyformer.core.positions import Rotary
from anyformer.core.rope import RopeConfig
from anyformer.recipes.base import Norm
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.text import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    n_layers: int = 32
    d_model: int = 4096
    n_heads: int = 32
    d_hidden: int | None = 11008
    vocab_size: int = 32000
    max_length: int = 4096
    activation: str = "silu"
    gated: bool = True
    norm: Norm = "rms"
    qkv_bias: bool = False
    out_bias: bool = False
    hidden_bias: bool = False
    positions: str = "rotary"
    scale: float | None = None  # scores are divided by the root of this; None: of d_head
    window: int | None = None  # tokens that a query sees, itself among them
    windowed: tuple[bool, ...] = (True,)  # which layers have the window, over and over up to n_layers
    tied: bool = False
    padding: int | None = None
    end: int | tuple[int, ...] | None = 2

    def check(self) -> None:
        super().check()
        self.require(bool(self.windowed), "windowed needs an entry at least.")
        self.require(self.window is None or self.window > 0, f"window is {self.window}; it must be 1 or more.")

    @property
    def windows(self) -> list[bool]:
        """For each layer, whether it has a window."""
        return [self.window is not None and self.windowed[i % len(self.windowed)] for i in range(self.n_layers)]

    def layer_mask(self, layer: int, causal: bool) -> Mask:
        mask = super().layer_mask(layer, causal)
        return mask & Window(self.window - 1) if self.window is not None and self.windows[layer] else mask

    def rotary(self, layer: int) -> Rotary:
        rope = self.ropes[-1] if self.windows[layer] else self.ropes[0]
        return Rotary(self.head_width, rope=rope, trained=self.max_length)

    def score_scale(self, layer: int) -> float | None:
        return super().score_scale(layer) if self.scale is None or self.score != "scaled" else self.scale**-0.5


TINY: dict[str, Any] = {
    **{"n_layers": 2, "d_model": 64, "n_heads": 4, "n_kv_heads": 2, "d_hidden": 128},
    **{"vocab_size": 256, "max_length": 128, "attention_dropout": 0.1},
}
_LLAMA3 = LlamaConfig(
    n_kv_heads=8, d_hidden=14336, vocab_size=128256, max_length=8192, ropes=(RopeConfig(theta=500_000.0),), end=128001
)
_STRETCHED = RopeConfig(theta=500_000.0, rope_type="llama3", factor=32.0, original_max_length=8192)
_SMOL = LlamaConfig(vocab_size=49152, max_length=8192, ropes=(RopeConfig(theta=100_000.0),), tied=True, end=0)

SIZES = {
    "llama-tiny": LlamaConfig(**TINY),
    "llama2-7b": LlamaConfig(),
    "llama3-8b": _LLAMA3,
    "llama3.2-1b": _LLAMA3.replace(
        n_layers=16, d_model=2048, d_hidden=8192, max_length=131072, ropes=(_STRETCHED,), tied=True
    ),
    "smollm2-135m": _SMOL.replace(n_layers=30, d_model=576, n_heads=9, n_kv_heads=3, d_hidden=1536),
    "smollm2-360m": _SMOL.replace(n_layers=32, d_model=960, n_heads=15, n_kv_heads=5, d_hidden=2560),
    "smollm2-1.7b": _SMOL.replace(
        n_layers=24, d_model=2048, n_heads=32, d_hidden=8192, ropes=(RopeConfig(theta=130_000.0),)
    ),
}

register("llama", LlamaConfig, decoder, SIZES)
