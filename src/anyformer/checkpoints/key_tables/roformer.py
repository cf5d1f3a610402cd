"""RoFormer: BERT's names. Files hold the sines and cosines of the rotation, which are written and not read."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.checkpoints.key_table import ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.key_tables.bert import DECODER, FIELDS, SPELLINGS, TYPES, WORDS, body, classes, with_words
from anyformer.checkpoints.names import by_names, prefix_aliases
from anyformer.core.positions import sinusoids
from anyformer.recipes.roformer import RoFormerConfig

_ANGLES = "roformer.encoder.embed_positions.weight"


NAMES = {
    **body("roformer"),
    "classify.pool": "classifier.dense",
    "classify.classes": "classifier.out_proj",
}


def made(config: RoFormerConfig) -> Mapping[str, Tensor]:
    places = torch.arange(config.max_length)
    return {_ANGLES: sinusoids(places, config.d_model // config.n_heads, "halves").float()}


TABLE = KeyTable(
    family="roformer",
    model_type="roformer",
    architectures={name: ours for name, ours in classes("RoFormer").items() if ours["head"] != "choice"},
    fields=(
        *with_defaults(FIELDS, max_position_embeddings=1536),
        *DECODER,
        TYPES,
        ConfigField("vocab_size", "vocab_size", 50000),
        ConfigField("d_embedding", "embedding_size", None),
        ConfigField("rotary_value", "rotary_value", False),
        ConfigField("padding", "pad_token_id", 0),
    ),
    **by_names(
        "roformer",
        with_words(NAMES, WORDS),
        prefix="roformer",
        ignored=(rf"^{re.escape(_ANGLES)}$",),
        aliases=(*SPELLINGS, *prefix_aliases("roformer", NAMES)),
    ),
    generated_tensors=made,
)
