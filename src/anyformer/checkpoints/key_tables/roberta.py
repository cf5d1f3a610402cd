"""RoBERTa: BERT's names, other heads."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable
from anyformer.checkpoints.key_tables.bert import DECODER, FIELDS, SPELLINGS, TYPES, body, classes, with_words, words
from anyformer.checkpoints.names import by_names, prefix_aliases

WORDS = words("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder")


def names(prefix: str, body: dict[str, Any]) -> dict[str, Any]:
    """With the heads of RoBERTa and MPNet: the class of a text is read through a dense layer."""
    classes = {"classify.pool": "classifier.dense", "classify.classes": "classifier.out_proj"}
    return {**body, **classes, "*.pool": f"{prefix}.pooler.dense"}


NAMES = names("roberta", body("roberta"))

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
    **by_names(
        "roberta", with_words(NAMES, WORDS), prefix="roberta", aliases=(*SPELLINGS, *prefix_aliases("roberta", NAMES))
    ),
    required_values={"position_embedding_type": ("absolute",)},
)
