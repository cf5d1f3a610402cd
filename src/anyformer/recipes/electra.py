"""ELECTRA (Clark et al. 2020): as BERT, except that word vectors may be narrower than the model, there is no pooler,
and a class is read through a dense layer with GELU. The discriminator says of every token whether it was replaced; the
generator, a smaller model of the same kind with the masked-words head, proposes the replacements. The two together,
with one set of word vectors, are the family electra-joint.

Published: small 79.9, base 85.1 on GLUE (table 1), large 90.9 on MNLI (table 2 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from anyformer.recipes.bert import BERTConfig
from anyformer.recipes.builders import encoder, register
from anyformer.recipes.text import HeadName, TextEncoderConfig


@dataclass(frozen=True, kw_only=True)
class ELECTRAConfig(BERTConfig):
    d_embedding: int | None = None  # of word, position and type vectors; None: d_model
    head: HeadName = "replaced_tokens"
    choice_activation: str = "gelu"
    choice_dropout: float = 0.1

    uses: ClassVar[tuple[HeadName, ...]] = ("replaced_tokens", *TextEncoderConfig.uses)
    pools: ClassVar[Mapping[str, str]] = {"classify": "gelu"}
    drops_first = True
    word_activation = "gelu"

    def pool_activation(self, use: str) -> str | None:
        return self.choice_activation if use == "choice" else super().pool_activation(use)

    def use_dropout(self, use: str) -> float:
        return self.choice_dropout if use == "choice" else super().use_dropout(use)


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

register("electra", ELECTRAConfig, encoder, SIZES)
