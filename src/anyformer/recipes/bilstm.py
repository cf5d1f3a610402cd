"""Bidirectional LSTM (Graves and Schmidhuber 2005): as BERT, except that in every block an LSTM that reads the text in
both directions takes the place of attention and of the network after it. With the head "language" it reads in one
direction only, as an LSTM language model (Sundermeyer et al. 2012).

Two tokens n places apart are n steps apart; the steps of a row cannot be computed at once.

Published: nothing of this form; on text it serves for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from anyformer.core.init import InitConfig
from anyformer.layers.recurrent import Recurrent
from anyformer.recipes.ancestors import AncestorConfig, build
from anyformer.recipes.builders import register
from anyformer.recipes.small_data_presets import SMALL_TEXT_DATA


@dataclass(frozen=True, kw_only=True)
class BiLSTMConfig(AncestorConfig):
    n_layers: int = 2
    cell: Literal["lstm", "gru"] = "lstm"

    def check(self) -> None:
        super().check()
        self.require(self.d_model % 2 == 0, f"d_model is {self.d_model}; it must be even: half for each direction.")

    def parts(self, layer: int, causal: bool) -> dict[str, nn.Module]:
        return {"recurrent": Recurrent(self.d_model, self.cell, bidirectional=not causal)}


def init(config: BiLSTMConfig) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=config.init_std)


SIZES = {
    "bilstm-tiny": BiLSTMConfig(d_model=64),
    "bilstm-small": BiLSTMConfig(d_model=256, vocab_size=8000, dropout=0.1),
}

register("bilstm", BiLSTMConfig, build, SIZES, init, {"bilstm-small": SMALL_TEXT_DATA})
