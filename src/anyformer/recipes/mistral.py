"""Mistral (Jiang et al. 2023): as Llama, except that each layer sees only the last 4096 tokens, a window that moves
along the text; deeper layers see further through the ones below.

Published: 7B 60.1% on MMLU (table 2 of the paper).
"""

from __future__ import annotations

from anyformer.model import Model
from anyformer.recipes import llama
from anyformer.recipes.llama import LlamaConfig, init
from anyformer.registry import Family, register


def build(config: LlamaConfig) -> Model:
    return llama.build(config, "mistral")


SIZES = {
    "mistral-tiny": llama.TINY.replace(window=6),
    "mistral-7b": LlamaConfig(n_kv_heads=8, d_hidden=14336, max_length=32768, window=4096),
}

register(Family("mistral", LlamaConfig, build, init, __doc__ or ""), SIZES)
