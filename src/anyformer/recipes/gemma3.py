"""Gemma 3, text (Gemma Team 2025): as Llama, except that each sublayer is normalized before and after, norm weights
count from 1, queries and keys are normalized, word vectors are multiplied by √d_model and shared with the output, and
five of six layers see a window only and turn faster than the sixth, which sees everything.

Published: 1B (instruction-tuned) 14.7% on MMLU-Pro, 4B 43.6% (table 6 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.block import NormOrder
from anyformer.core.rope import RopeConfig
from anyformer.recipes.base import Norm
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.llama import TINY, LlamaConfig


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(LlamaConfig):
    n_layers: int = 18
    d_model: int = 640
    n_heads: int = 4
    n_kv_heads: int | None = 1
    d_head: int | None = 256
    d_hidden: int | None = 2048
    vocab_size: int = 262144
    max_length: int = 32768
    activation: str = "gelu_tanh"
    norm: Norm = "rms_offset"
    norm_eps: float = 1e-6
    norm_order: NormOrder = "sandwich"
    qk_norm: bool = True
    scale: float | None = 256.0
    ropes: tuple[RopeConfig, ...] = (RopeConfig(theta=1_000_000.0), RopeConfig(theta=10_000.0))
    window: int | None = 512
    windowed: tuple[bool, ...] = (True,) * 5 + (False,)
    logit_cap: float | None = None  # logits stay between -cap and cap
    scale_embedding: bool = True
    tied: bool = True
    padding: int | None = 0
    end: int | tuple[int, ...] | None = 1


_TINY = TINY | {"n_layers": 3, "d_head": 24}

SIZES = {
    "gemma3-tiny": Gemma3Config(**_TINY, window=6, windowed=(True, True, False), scale=20.0),
    "gemma3-270m": Gemma3Config(),
    "gemma3-1b": Gemma3Config(n_layers=26, d_model=1152, d_hidden=6912),
}

register("gemma3", Gemma3Config, decoder, SIZES)
