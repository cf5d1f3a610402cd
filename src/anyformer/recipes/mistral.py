"""Mistral (Jiang et al. 2023): as Llama, except that each layer sees only the last 4096 tokens, a window that moves
along the text; deeper layers see further through the ones below.

Published: 7B 60.1% on MMLU (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.recipes.builders import decoder, register
from anyformer.recipes.llama import TINY, LlamaConfig


@dataclass(frozen=True, kw_only=True)
class MistralConfig(LlamaConfig):
    window: int | None = 4096


SIZES = {
    "mistral-tiny": MistralConfig(**TINY, window=6),
    "mistral-7b": MistralConfig(n_kv_heads=8, d_hidden=14336, max_length=32768),
}

register("mistral", MistralConfig, decoder, SIZES)
