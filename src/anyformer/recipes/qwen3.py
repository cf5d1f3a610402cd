"""Qwen3 (Yang et al. 2025): as Qwen2, except that queries and keys are normalized instead of having biases, and that
heads are 128 wide whatever the model's width.

Published: 0.6B base 52.8% on MMLU, 8B base 76.9% (the paper's tables of base models).
"""

from __future__ import annotations

from anyformer.core.rope import RopeConfig
from anyformer.model import Model
from anyformer.recipes import llama
from anyformer.recipes.llama import LlamaConfig, init
from anyformer.registry import Family, register


def build(config: LlamaConfig) -> Model:
    return llama.build(config, "qwen3")


_QWEN3 = LlamaConfig(
    vocab_size=151936,
    max_length=32768,
    norm_eps=1e-6,
    qk_norm=True,
    d_head=128,
    n_kv_heads=8,
    ropes=(RopeConfig(theta=1_000_000.0),),
    end=151643,
)

SIZES = {
    "qwen3-tiny": llama.TINY.replace(qk_norm=True, d_head=24),
    "qwen3-0.6b": _QWEN3.replace(n_layers=28, d_model=1024, n_heads=16, d_hidden=3072, tied=True),
    "qwen3-8b": _QWEN3.replace(n_layers=36, d_model=4096, n_heads=32, d_hidden=12288),
}

register(Family("qwen3", LlamaConfig, build, init, __doc__ or ""), SIZES)
