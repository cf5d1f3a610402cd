"""Qwen2 (Yang et al. 2024): as Llama, except that queries, keys and values have biases, and that the upper layers may
have a window.

Published: 0.5B 45.4% on MMLU, 7B 70.3% (the paper's tables of base models).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.rope import RopeConfig
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.llama import TINY, LlamaConfig


@dataclass(frozen=True, kw_only=True)
class Qwen2Config(LlamaConfig):
    vocab_size: int = 151936
    max_length: int = 131072
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    ropes: tuple[RopeConfig, ...] = (RopeConfig(theta=1_000_000.0),)
    end: int | tuple[int, ...] | None = 151643


SIZES = {
    "qwen2-tiny": Qwen2Config(**TINY, norm_eps=1e-5, ropes=(RopeConfig(),), end=2, window=6, windowed=(False, True)),
    "qwen2-0.5b": Qwen2Config(n_layers=24, d_model=896, n_heads=14, n_kv_heads=2, d_hidden=4864, tied=True),
    "qwen2-7b": Qwen2Config(n_layers=28, d_model=3584, n_heads=28, n_kv_heads=4, d_hidden=18944, vocab_size=152064),
}

register("qwen2", Qwen2Config, decoder, SIZES)
