"""RoBERTa: BERT's names, other heads."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, strip_prefix, weight_and_bias
from anyformer.checkpoints.key_tables import bert
from anyformer.checkpoints.key_tables.bert import (
    DECODER,
    FIELDS,
    OLD_BUFFERS,
    SPELLINGS,
    TYPES,
    classes,
    inputs,
    layers,
    words,
)
from anyformer.recipes.roberta import RoBERTaConfig
from anyformer.recipes.text import TextEncoderConfig

# What RoBERTa and MPNet call the head over the first token, by use.
_POOLED = {"base": "embed", "choice": "choice"}


def heads(use: str) -> list[Key]:
    """As BERT's, except that the class of a text is read through a dense layer."""
    if use == "classify":
        return [
            *weight_and_bias("classify.pool", "classifier.dense"),
            *weight_and_bias("classify.classes", "classifier.out_proj"),
        ]
    return bert.heads(use)


def head_keys(config: TextEncoderConfig, theirs: str) -> list[Key]:
    """The heads of RoBERTa and MPNet; `theirs` is the prefix of the encoder."""
    use = config.head
    rows = weight_and_bias(f"{_POOLED[use]}.pool", f"{theirs}.pooler.dense") if use in _POOLED else []
    if use == "masked":
        rows += words(config.tied, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder")
    return rows + heads(use)


def head_leftovers(config: TextEncoderConfig, theirs: str) -> tuple[str, ...]:
    """The pooler and the masked-words head, where this architecture has none; old buffers; the bias's second name."""
    unused = [] if config.head in _POOLED else [rf"^{theirs}\.pooler\."]
    unused += [] if config.head == "masked" else [r"^lm_head\."]
    return (OLD_BUFFERS, r"^lm_head\.bias$", *unused)


def keys(config: RoBERTaConfig) -> list[Key]:
    also = ("lm_head.decoder.weight",) if config.tied and config.head == "masked" else ()
    return [
        *inputs("roberta.embeddings", ("words", "positions", "types"), also),
        *layers(config.n_layers, "roberta.encoder.layer.{i}", config.cross_attention),
        *head_keys(config, "roberta"),
    ]


TABLE = KeyTable(
    family="roberta",
    model_type="roberta",
    architectures=classes("Roberta"),
    fields=(
        *FIELDS,
        *DECODER,
        TYPES,
        ConfigField("vocab_size", "vocab_size", 50265),
        ConfigField("head_dropout", "classifier_dropout", None),
        ConfigField("padding", "pad_token_id", 1),
    ),
    keys=keys,
    required_values={"position_embedding_type": ("absolute",)},
    aliases=(*SPELLINGS, (r"^(embeddings|encoder|pooler)\.", r"roberta.\1.")),
    ignored_keys=lambda config: head_leftovers(config, "roberta"),
    rename=strip_prefix("roberta."),
)
