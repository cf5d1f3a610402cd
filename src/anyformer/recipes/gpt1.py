"""GPT (Radford et al. 2018): as its successor GPT-2, except that norms come after the sublayers, there is none at
the end, and texts are at most 512 tokens long.

Published: 86.5% on Story Cloze after fine-tuning (table 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.core.block import NormOrder
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.gpt2 import GPT2Config


@dataclass(frozen=True, kw_only=True)
class GPT1Config(GPT2Config):
    norm_order: NormOrder = "post"

    reports_cross_attentions = False


SIZES = {
    "gpt1-tiny": GPT1Config(n_layers=2, d_model=64, n_heads=4, vocab_size=256, max_length=128),
    "gpt1": GPT1Config(vocab_size=40478, max_length=512),
}

register("gpt1", GPT1Config, decoder, SIZES)
