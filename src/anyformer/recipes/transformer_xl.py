"""Transformer-XL (Dai et al. 2019): as the decoder of the original Transformer without its encoder, except that a text
is read segment by segment, attention sees the last segment's tokens too (what entered each layer there, without
gradient), and positions are relative, with a map of their own in each layer.

`mem_len` bounds the memory in tokens. The next segment goes on from `past_key_values`. The sizes are those for
characters, where the paper has a plain softmax; its adaptive softmax for large word vocabularies is not built.

Published: 12 layers (41M) 1.06, 24 layers (277M) 0.99 bits a character on enwik8 (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from anyformer.config import Settings
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.masks import Causal
from anyformer.core.positions import RelativeXL
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.layers.wrappers import SegmentRecurrence
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, next_token_head, normal_init, stack_report, sublayer
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(Settings):
    n_layers: int = 12
    d_model: int = 512
    n_heads: int = 8
    d_head: int = 64
    d_hidden: int = 2048
    vocab_size: int = 204
    mem_len: int = 512  # tokens of the past that every layer remembers
    norm_order: Literal["pre", "post"] = "post"  # the paper's models are post-norm, its code has both
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tied: bool = True
    shared_biases: bool = True  # u and v are the same in all layers, as in the paper; the maps W are never

    def check(self) -> None:
        self.require(self.mem_len >= 0, f"mem_len is {self.mem_len}; it must be 0 or more.")


def _block(config: TransformerXLConfig) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model,
        n_heads=config.n_heads,
        d_qk=config.n_heads * config.d_head,
        bias=False,
        out_bias=False,
        dropout=config.attention_dropout,
        mask=Causal(),
    )
    feedforward = FeedForwardConfig(
        d_model=config.d_model, d_hidden=config.d_hidden, activation="relu", dropout=config.dropout
    )
    parts = {"self": SegmentRecurrence(Attention(attention), config.mem_len), "feedforward": FeedForward(feedforward)}
    same: dict[str, Any] = {"order": config.norm_order, "dropout": config.dropout}
    return Block({name: sublayer(part, config.d_model, **same) for name, part in parts.items()})


def _positions(config: TransformerXLConfig) -> list[RelativeXL]:
    layers = [RelativeXL(config.n_heads, config.d_head, config.d_model) for _ in range(config.n_layers)]
    if config.shared_biases:
        for layer in layers[1:]:
            layer.content, layer.place = layers[0].content, layers[0].place
    return layers


def build(config: TransformerXLConfig) -> Model:
    inputs = TextInput(
        TextInputConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            position_ids=False,
            scale=config.d_model**0.5,
            dropout=config.dropout,
        )
    )
    blocks = [_block(config) for _ in range(config.n_layers)]
    head = next_token_head(config, inputs, bias=True)
    report = stack_report("decoder", config.n_layers)
    stage = Stage("decoder", inputs, Stack(blocks, positions=_positions(config)))
    return Model("transformer-xl", config, [stage], {"language": head}, report)


SIZES = {
    "transformer-xl-tiny": TransformerXLConfig(**TINY, d_head=16, vocab_size=256, mem_len=32),
    "transformer-xl-mini": TransformerXLConfig(
        n_layers=8, d_model=256, n_heads=4, d_head=64, d_hidden=1024, mem_len=256, dropout=0.3
    ),
    "transformer-xl-41m": TransformerXLConfig(),
    "transformer-xl-277m": TransformerXLConfig(
        n_layers=24, d_model=1024, d_head=128, d_hidden=3072, mem_len=784, dropout=0.15, attention_dropout=0.15
    ),
}

register(
    Family("transformer-xl", TransformerXLConfig, build, normal_init, __doc__ or ""),
    SIZES,
    {"transformer-xl-mini": SMALL_TEXT_DATA},
)
