"""Gemma (Gemma Team 2024): as Llama, except that norm weights count from 1, the gated network has GELU, word vectors
are multiplied by √d_model and shared with the output, and heads are 256 wide whatever the model's width.

Published: 2B 42.3% on MMLU, 7B 64.3% (their model card).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.recipes.base import Norm
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.llama import TINY, LlamaConfig


@dataclass(frozen=True, kw_only=True)
class GemmaConfig(LlamaConfig):
    n_layers: int = 28
    d_model: int = 3072
    n_heads: int = 16
    d_head: int | None = 256
    d_hidden: int | None = 24576
    vocab_size: int = 256000
    max_length: int = 8192
    activation: str = "gelu_tanh"
    norm: Norm = "rms_offset"
    norm_eps: float = 1e-6
    scale_embedding: bool = True
    tied: bool = True
    padding: int | None = 0
    end: int | tuple[int, ...] | None = 1


SIZES = {
    "gemma-tiny": GemmaConfig(**TINY, d_head=24),
    "gemma-2b": GemmaConfig(n_layers=18, d_model=2048, n_heads=8, n_kv_heads=1, d_hidden=16384),
    "gemma-7b": GemmaConfig(),
}

register("gemma", GemmaConfig, decoder, SIZES)
