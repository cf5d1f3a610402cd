"""GPT-NeoX (Black et al. 2022): as GPT-2, except that attention and the feed-forward network of a layer read the same
input and are added together, positions turn a quarter of each head's features instead of being added, and the output
has a table of its own. Pythia (Biderman et al. 2023) is the same family in ten sizes.

Published: 20B 72.0% on LAMBADA, zero-shot (the GPT-NeoX paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.rope import RopeConfig
from anyformer.recipes.base import TINY
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.text import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class GPTNeoXConfig(DecoderConfig):
    n_layers: int = 44
    d_model: int = 6144
    n_heads: int = 64
    d_hidden: int | None = 24576
    vocab_size: int = 50432
    max_length: int = 2048
    parallel: bool = True
    positions: str = "rotary"
    ropes: tuple[RopeConfig, ...] = (RopeConfig(partial_rotary_factor=0.25),)
    tied: bool = False
    end: int | tuple[int, ...] | None = 0


def _pythia(n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50304) -> GPTNeoXConfig:
    return GPTNeoXConfig(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_hidden=4 * d_model, vocab_size=vocab_size
    )


SIZES = {
    "gptneox-tiny": GPTNeoXConfig(**TINY, vocab_size=256, max_length=128, attention_dropout=0.1),
    "gptneox-20b": GPTNeoXConfig(),
    #                    layers  width  heads  words
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    "pythia-12b": _pythia(36, 5120, 40, 50688),
}

register("gptneox", GPTNeoXConfig, decoder, SIZES)
