"""GPT-2 (Radford et al. 2019): as the decoder of the original Transformer, except that there is no encoder to attend
to, norms come before the sublayers and once more at the end, positions are learned, and the activation is GELU.
Residual projections start smaller the deeper the model is.

Published: 1.5B reaches perplexity 17.48 on WikiText-103 without training on it (table 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.recipes.base import deep_init
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA
from anyformer.recipes.text import DecoderConfig


@dataclass(frozen=True, kw_only=True)
class GPT2Config(DecoderConfig):
    max_length: int = 1024
    activation: str = "gelu_tanh"
    dropout: float = 0.1
    embedding_dropout: float | None = 0.1
    attention_dropout: float | None = 0.1
    scale_by_depth: bool = False  # divide scores by the number of the layer, from 1
    cross_attention: bool = False  # attends to encoder_hidden_states where they are given

    shared_types = True
    reports_cross_attentions = True

    def score_scale(self, layer: int) -> float:
        scale = 1.0 if self.score == "dot" else self.head_width**-0.5
        return scale / (layer + 1) if self.scale_by_depth else scale


def _dropout(config: GPT2Config, share: float) -> GPT2Config:
    return config.replace(dropout=share, embedding_dropout=share, attention_dropout=share)


SIZES = {
    "gpt2-tiny": GPT2Config(n_layers=2, d_model=64, n_heads=4, vocab_size=256, max_length=128),
    "gpt2-char-cpu": _dropout(GPT2Config(n_layers=4, d_model=128, n_heads=4, max_length=64), 0.0),
    "gpt2-char": _dropout(GPT2Config(n_layers=6, d_model=384, n_heads=6, max_length=256), 0.2),
    "gpt2-mini": _dropout(GPT2Config(n_layers=8, d_model=256, n_heads=4, max_length=512), 0.3),
    "gpt2-124m": GPT2Config(n_layers=12, d_model=768, n_heads=12),
    "gpt2-355m": GPT2Config(n_layers=24, d_model=1024, n_heads=16),
    "gpt2-774m": GPT2Config(n_layers=36, d_model=1280, n_heads=20),
    "gpt2-1.5b": GPT2Config(n_layers=48, d_model=1600, n_heads=25),
}

# A million letters or so, such as tinyshakespeare: the sizes and lengths of nanoGPT's two examples.
_LETTERS: dict[str, Any] = {"tokenizer.kind": "char", "data.validation_split": 0.1, "train.eval_every": 250}
TRAINING: dict[str, dict[str, Any]] = {
    "gpt2-char-cpu": {**_LETTERS, "train.batch_size": 12, "train.steps": 2000, "train.lr": 2e-3},
    "gpt2-char": {**_LETTERS, "train.batch_size": 64, "train.steps": 5000},
    "gpt2-mini": SMALL_TEXT_DATA,
}

register("gpt2", GPT2Config, decoder, SIZES, deep_init, TRAINING)
