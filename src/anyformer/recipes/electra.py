"""ELECTRA (Clark et al. 2020): as BERT, except that word vectors may be narrower than the model, there is no pooler,
and a class is read through a dense layer with GELU. The discriminator says of every token whether it was replaced; the
generator, a smaller model of the same kind with the masked-words head, proposes the replacements. The two together,
with one set of word vectors, are the family electra-joint.

Published: small 79.9, base 85.1 on GLUE (table 1), large 90.9 on MNLI (table 2 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anyformer.core.positions import LearnedPositions
from anyformer.heads.base import Head
from anyformer.heads.tag import ReplacedTokenHead
from anyformer.inputs.text import TextInput
from anyformer.model import Model
from anyformer.recipes import encoder
from anyformer.recipes.bert import BERTConfig
from anyformer.recipes.common import normal_init
from anyformer.recipes.encoder import HeadName, HeadStyle, TextEncoderConfig
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class ELECTRAConfig(BERTConfig):
    d_embedding: int | None = None  # of word, position and type vectors; None: d_model
    head: HeadName = "replaced_tokens"
    choice_activation: str = "gelu"
    choice_dropout: float = 0.1

    uses: ClassVar[tuple[HeadName, ...]] = ("replaced_tokens", *TextEncoderConfig.uses)

    @property
    def width(self) -> int:
        return self.d_embedding if self.d_embedding is not None else self.d_model


def text_input(config: ELECTRAConfig) -> TextInput:
    table = LearnedPositions(config.max_length, config.width)
    return encoder.text_input(config, table, n_types=config.n_types, d_embedding=config.width)


def heads(config: ELECTRAConfig, inputs: TextInput) -> dict[str, Head]:
    if config.head == "replaced_tokens":
        return {"replaced": ReplacedTokenHead(config.d_model, config.activation, "encoder")}
    style = HeadStyle(
        pools={"classify": "gelu", "choice": config.choice_activation},
        drops_first=True,
        words="gelu",
        d_words=config.d_embedding,
        choice_dropout=config.choice_dropout,
    )
    return encoder.heads(config, style, inputs)


def build(config: ELECTRAConfig) -> Model:
    inputs = text_input(config)
    return encoder.model(
        "electra",
        config,
        inputs,
        heads(config, inputs),
        causal=config.causal,
        cross_attention=config.cross_attention,
    )


SMALL = ELECTRAConfig(d_model=256, d_embedding=128, n_heads=4, d_hidden=1024)
LARGE = ELECTRAConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096)


def _generator(config: ELECTRAConfig) -> ELECTRAConfig:
    """The published generators: the layers and word vectors of the discriminator, 256 wide."""
    return config.replace(d_embedding=config.width, d_model=256, n_heads=4, d_hidden=1024, head="masked")


SIZES = {
    "electra-tiny": ELECTRAConfig(
        n_layers=2, d_model=64, d_embedding=32, n_heads=4, d_hidden=128, vocab_size=256, max_length=128
    ),
    "electra-small": SMALL,
    "electra-base": ELECTRAConfig(),
    "electra-large": LARGE,
    "electra-small-generator": _generator(SMALL),
    "electra-base-generator": _generator(ELECTRAConfig()),
    "electra-large-generator": _generator(LARGE),
}

register(Family("electra", ELECTRAConfig, build, normal_init, __doc__ or ""), SIZES)
