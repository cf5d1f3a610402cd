"""RoFormer: BERT's names. Files hold the sines and cosines of the rotation, which are written and not read."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, strip_prefix, with_defaults
from anyformer.checkpoints.key_tables.bert import DECODER, FIELDS, SPELLINGS, TYPES, classes, inputs, layers, words
from anyformer.checkpoints.key_tables.electra import project
from anyformer.checkpoints.key_tables.roberta import heads
from anyformer.core.positions import sinusoids
from anyformer.recipes.roformer import RoFormerConfig

_ANGLES = "roformer.encoder.embed_positions.weight"


def keys(config: RoFormerConfig) -> list[Key]:
    use, scores, transform = config.head, "cls.predictions.decoder", "cls.predictions.transform"
    also = (f"{scores}.weight",) if config.tied and use == "masked" else ()
    rows = [
        *inputs("roformer.embeddings", ("words", "types"), also),
        *project(config.d_embedding, config.d_model, "roformer"),
        *layers(config.n_layers, "roformer.encoder.layer.{i}", config.cross_attention),
    ]
    if use == "masked":
        rows += words(config.tied, f"{transform}.dense", f"{transform}.LayerNorm", "cls.predictions.bias", scores)
    return rows + heads(use)


def ignored_keys(config: RoFormerConfig) -> tuple[str, ...]:
    unused = [] if config.head == "masked" else [r"^cls\."]
    return (rf"^{re.escape(_ANGLES)}$", r"^cls\.predictions\.bias$", *unused)


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
    keys=keys,
    aliases=(*SPELLINGS, (r"^(embeddings|embeddings_project|encoder)\.", r"roformer.\1.")),
    ignored_keys=ignored_keys,
    generated_tensors=made,
    rename=strip_prefix("roformer."),
)
