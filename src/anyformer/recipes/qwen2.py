"""Qwen2 (Yang et al. 2024): as Llama, except that queries, keys and values have biases, and that the upper layers may
have a window.

Published: 0.5B 45.4% on MMLU, 7B 70.3% (the paper's tables of base models).
"""

from __future__ import annotations

from anyformer.core.rope import RopeConfig
from anyformer.model import Model
from anyformer.recipes import llama
from anyformer.recipes.llama import LlamaConfig, init
from anyformer.registry import Family, register


def build(config: LlamaConfig) -> Model:
    return llama.build(config, "qwen2")


_QWEN2 = LlamaConfig(
    vocab_size=151936,
    max_length=131072,
    norm_eps=1e-6,
    qkv_bias=True,
    ropes=(RopeConfig(theta=1_000_000.0),),
    end=151643,
)

SIZES = {
    "qwen2-tiny": llama.TINY.replace(qkv_bias=True, window=6, windowed=(False, True)),
    "qwen2-0.5b": _QWEN2.replace(n_layers=24, d_model=896, n_heads=14, n_kv_heads=2, d_hidden=4864, tied=True),
    "qwen2-7b": _QWEN2.replace(n_layers=28, d_model=3584, n_heads=28, n_kv_heads=4, d_hidden=18944, vocab_size=152064),
}

register(Family("qwen2", LlamaConfig, build, init, __doc__ or ""), SIZES)
