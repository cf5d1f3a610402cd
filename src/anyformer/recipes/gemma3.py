"""Gemma 3, text (Gemma Team 2025): as Llama, except that each sublayer is normalized before and after, norm weights
count from 1, queries and keys are normalized, word vectors are multiplied by √d_model and shared with the output, and
five of six layers see a window only and turn faster than the sixth, which sees everything.

Published: 1B (instruction-tuned) 14.7% on MMLU-Pro, 4B 43.6% (table 6 of the paper).
"""

from __future__ import annotations

from anyformer.core.rope import RopeConfig
from anyformer.model import Model
from anyformer.recipes import llama
from anyformer.recipes.llama import LlamaConfig, init
from anyformer.registry import Family, register


def build(config: LlamaConfig) -> Model:
    return llama.build(config, "gemma3")


_ROPES = (RopeConfig(theta=1_000_000.0), RopeConfig(theta=10_000.0))
_GEMMA3 = LlamaConfig(
    vocab_size=262144,
    max_length=32768,
    d_model=640,
    n_heads=4,
    n_kv_heads=1,
    d_head=256,
    d_hidden=2048,
    n_layers=18,
    activation="gelu_tanh",
    norm="rms_offset",
    norm_eps=1e-6,
    sandwich=True,
    qk_norm=True,
    scale=256.0,
    ropes=_ROPES,
    window=512,
    windowed=(True,) * 5 + (False,),
    scale_embedding=True,
    tied=True,
    padding=0,
    end=1,
)

SIZES = {
    "gemma3-tiny": _GEMMA3.replace(
        n_layers=3,
        d_model=64,
        d_head=24,
        n_kv_heads=2,
        d_hidden=128,
        vocab_size=256,
        max_length=128,
        window=6,
        windowed=(True, True, False),
        scale=20.0,
        attention_dropout=0.1,
    ),
    "gemma3-270m": _GEMMA3,
    "gemma3-1b": _GEMMA3.replace(n_layers=26, d_model=1152, d_hidden=6912),
}

register(Family("gemma3", LlamaConfig, build, init, __doc__ or ""), SIZES)
