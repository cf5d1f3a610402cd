"""Transformer-XL (Dai et al. 2019): as the decoder of the original Transformer without its encoder, except that a text
is read segment by segment, attention sees the last segment's tokens too (what entered each layer there, without
gradient), and positions are relative, with a map of their own in each layer.

`mem_len` bounds the memory in tokens. The next segment goes on from `past_key_values`. The sizes are those for
characters, where the paper has a plain softmax; its adaptive softmax for large word vocabularies is not built.

Published: 12 layers (41M) 1.06, 24 layers (277M) 0.99 bits a character on enwik8 (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from anyformer.core.block import Block, NormOrder
from anyformer.core.positions import Positions, RelativeXL
from anyformer.heads.language import LanguageConfig
from anyformer.layers.wrappers import SegmentRecurrence
from anyformer.recipes.base import TINY, attention, feedforward, sublayer
from anyformer.recipes.builders import decoder, register
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA
from anyformer.recipes.text import DecoderConfig, HeadName


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(DecoderConfig):
    d_model: int = 512
    n_heads: int = 8
    d_head: int | None = 64
    d_hidden: int | None = 2048
    activation: str = "relu"
    qkv_bias: bool = False
    out_bias: bool = False
    positions: str = "xl"
    norm_order: NormOrder = "post"  # the paper's models are post-norm, its code has both
    vocab_size: int = 204
    mem_len: int = 512  # tokens of the past that every layer remembers
    dropout: float = 0.1
    hidden_dropout: float | None = None
    scale_embedding: bool = True
    shared_biases: bool = True  # u and v are the same in all layers, as in the paper; the maps W are never

    uses: ClassVar[tuple[HeadName, ...]] = ("language",)
    position_kinds = ("xl",)  # the memory has no positions of its own
    mask_kinds = ("all",)
    takes_position_ids = False
    has_final_norm = False

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(bias=True)

    def attended_positions(self, causal: bool) -> list[Positions]:
        layers = [RelativeXL(self.n_heads, self.head_width, self.d_model) for _ in range(self.n_layers)]
        if self.shared_biases:
            for layer in layers[1:]:
                layer.content, layer.place = layers[0].content, layers[0].place
        return [*layers]

    def block(self, layer: int, causal: bool, d_context: int | None = None) -> Block:
        attends = attention(self, layer, self.layer_mask(layer, causal))
        parts: dict[str, nn.Module] = {
            "self": SegmentRecurrence(attends, self.mem_len),
            "feedforward": feedforward(self),
        }
        return Block({name: sublayer(self, part, layer) for name, part in parts.items()}, self.parallel)


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

register("transformer-xl", TransformerXLConfig, decoder, SIZES, training={"transformer-xl-mini": SMALL_TEXT_DATA})
