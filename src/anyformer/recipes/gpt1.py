"""GPT (Radford et al. 2018): as its successor GPT-2, except that norms come after the sublayers, there is none at
the end, and texts are at most 512 tokens long.

Published: 86.5% on Story Cloze after fine-tuning (table 3 of the paper).
"""

from __future__ import annotations

from anyformer.model import Model
from anyformer.recipes import gpt2
from anyformer.recipes.common import normal_init
from anyformer.recipes.gpt2 import GPT2Config
from anyformer.registry import Family, register


def build(config: GPT2Config) -> Model:
    return gpt2.build(config, "gpt1", order="post")


SIZES = {
    "gpt1-tiny": GPT2Config(n_layers=2, d_model=64, n_heads=4, vocab_size=256, max_length=128),
    "gpt1": GPT2Config(vocab_size=40478, max_length=512),
}

register(Family("gpt1", GPT2Config, build, normal_init, __doc__ or ""), SIZES)
