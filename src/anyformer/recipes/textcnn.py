"""Dilated convolutions on one text: as BERT, except that in every block the convolution of ByteNet (Kalchbrenner et al.
2016) takes the place of attention and of the network after it, and a class is told from the maximum over the tokens
(Kim 2014). With the head "language" it is ByteNet's decoder alone, whose convolutions end at the token itself.

The reach doubles from block to block, so two tokens are a logarithmic number of layers apart.

Published: nothing of this form; on text it serves for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from anyformer.core.init import InitConfig
from anyformer.layers.convolution import DilatedConvBlock, DilatedConvBlockConfig
from anyformer.recipes.ancestors import AncestorConfig, build
from anyformer.recipes.builders import register
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA


@dataclass(frozen=True, kw_only=True)
class TextCNNConfig(AncestorConfig):
    n_layers: int = 5
    kernel: int = 3
    dilation: int = 2  # factor from block to block; 1: all convolutions are dense
    n_blocks: int = 5  # after which the dilation starts at 1 again
    pooling: Literal["mean", "max", "first", "last"] = "max"

    def parts(self, layer: int, causal: bool) -> dict[str, nn.Module]:
        convolution = DilatedConvBlockConfig(
            d_model=self.d_model,
            d_inner=self.d_model // 2,
            kernel=self.kernel,
            dilation=self.dilation ** (layer % self.n_blocks),
            causal=causal,
        )
        return {"convolution": DilatedConvBlock(convolution)}


def init(config: TextCNNConfig) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=config.init_std)


SIZES = {
    "textcnn-tiny": TextCNNConfig(n_layers=3, d_model=64),
    "textcnn-small": TextCNNConfig(d_model=256, vocab_size=8000, dropout=0.1),
}

register("textcnn", TextCNNConfig, build, SIZES, init, {"textcnn-small": SMALL_TEXT_DATA})
