"""What the ancestors of the transformer share on one text. Each puts a token into context by another layer where
attention stands; the words, the norms and the heads around it are a transformer's, from the same builders.

The head "language" makes a decoder, whose layers see no later token; the others make an encoder, whose layers see both
sides if they can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from anyformer.core.block import Block
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig
from anyformer.heads.language import LanguageConfig
from anyformer.inputs.text import TextInput
from anyformer.model import Model, OutputSpec
from anyformer.recipes.base import sublayer
from anyformer.recipes.builders import decoder, encoder
from anyformer.recipes.text import HeadName, TextConfig, label_heads


@dataclass(frozen=True, kw_only=True)
class AncestorConfig(TextConfig):
    n_layers: int = 4
    d_model: int = 256
    vocab_size: int = 256
    positions: str = "none"
    embedding_dropout: float | None = 0.0
    pooling: Literal["mean", "max", "first", "last"] = "mean"  # which tokens a class is told from

    uses: ClassVar[tuple[HeadName, ...]] = ("language", "base", "classify", "tag")
    cache_name: ClassVar[str] = "past_key_values"
    first_hidden: ClassVar[int] = 0  # hidden states begin with the words, or 1: behind the first block

    @property
    def takes_position_ids(self) -> bool:
        return self.positions != "none"

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(shift=True, keep=True)

    def parts(self, layer: int, causal: bool) -> dict[str, nn.Module]:
        """The parts of a block, each with a norm and a residual connection."""
        raise NotImplementedError

    def block(self, layer: int, causal: bool, d_context: int | None = None) -> Block:
        return Block({name: sublayer(self, part, layer) for name, part in self.parts(layer, causal).items()})


def heads(config: AncestorConfig, inputs: TextInput) -> dict[str, Head]:
    classify = ClassificationConfig(
        d_model=config.d_model,
        n_labels=config.n_labels,
        stage="encoder",
        pooling=config.pooling,
        dropout=config.dropout if config.head_dropout is None else config.head_dropout,
        problem=config.problem,
    )
    return label_heads(config, "encoder", classify)


def build(config: Any, family: str) -> Model:
    stage, first = "decoder" if config.head == "language" else "encoder", config.first_hidden
    report = OutputSpec(
        hidden={"hidden_states": (stage, (*range(first, config.n_layers + first), -1))}, cache=config.cache_name
    )
    if config.head == "language":
        return decoder(config, family, report)
    return encoder(config, family, heads=heads, report=report)
