"""GPT-2 (Radford et al. 2019): as the decoder of the original Transformer, except that there is no encoder to attend
to, norms come before the sublayers and once more at the end, positions are learned, and the activation is GELU.
Residual projections start smaller the deeper the model is.

Published: 1.5B reaches perplexity 17.48 on WikiText-103 without training on it (table 3 of the paper).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import Causal, Mask
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import check_heads_divide, deep_init, next_token_head, stack_report, transformer_block
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA
from anyformer.registry import Family, register

Order = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class GPT2Config(Settings):
    n_layers: int = 12
    d_model: int = 768
    n_heads: int = 12
    d_hidden: int | None = None  # None: 4 · d_model
    vocab_size: int = 50257
    max_length: int = 1024
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-5
    dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    scale_by_width: bool = True  # divide scores by √d_head
    scale_by_depth: bool = False  # and by the number of the layer, from 1
    cross_attention: bool = False  # attends to encoder_hidden_states where they are given
    tied: bool = True

    def check(self) -> None:
        check_heads_divide(self)


def block(config: GPT2Config, layer: int, order: Order, mask: Mask, norm: NormConfig) -> Block:
    scale = (config.d_model // config.n_heads) ** -0.5 if config.scale_by_width else 1.0
    scale = scale / (layer + 1) if config.scale_by_depth else scale
    attention = AttentionConfig(
        d_query=config.d_model, n_heads=config.n_heads, dropout=config.attention_dropout, scale=scale, mask=mask
    )
    d_hidden = config.d_hidden if config.d_hidden is not None else 4 * config.d_model
    feedforward = FeedForwardConfig(d_model=config.d_model, d_hidden=d_hidden, activation=config.activation)
    memory = config.d_model if config.cross_attention else None
    return transformer_block(attention, feedforward, d_context=memory, order=order, norm=norm, dropout=config.dropout)


def build(
    config: GPT2Config,
    family: str = "gpt2",
    order: Order = "pre",
    masks: Callable[[int], Mask] = lambda layer: Causal(),
) -> Model:
    """Its predecessor and its successor differ in the order of the norms and in what each layer may see."""
    inputs = TextInput(
        TextInputConfig(
            vocab_size=config.vocab_size, d_model=config.d_model, types="shared", dropout=config.embedding_dropout
        ),
        LearnedPositions(config.max_length, config.d_model),
    )
    norm = NormConfig(eps=config.norm_eps)
    blocks = [block(config, layer, order, masks(layer), norm) for layer in range(config.n_layers)]
    stack = Stack(blocks, make_norm(norm, config.d_model) if order == "pre" else None)
    memory = "encoder_hidden_states" if config.cross_attention else None
    head = next_token_head(config, inputs)
    report = stack_report("decoder", config.n_layers, normed=True, crosses=True, empty=family == "gpt2")
    return Model(family, config, [Stage("decoder", inputs, stack, memory=memory)], {"language": head}, report)


def _dropout(config: GPT2Config, share: float) -> GPT2Config:
    return config.replace(dropout=share, embedding_dropout=share, attention_dropout=share)


SIZES = {
    #                    layers        width           heads
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

register(Family("gpt2", GPT2Config, build, deep_init, __doc__ or ""), SIZES, TRAINING)
