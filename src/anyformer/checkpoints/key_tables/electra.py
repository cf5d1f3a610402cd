"""ELECTRA, discriminator and generator: BERT's names, narrower word vectors, other heads."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, activation, with_defaults
from anyformer.checkpoints.key_tables.bert import DECODER, FIELDS, SPELLINGS, TYPES, body, classes
from anyformer.checkpoints.names import by_names
from anyformer.errors import ConfigError

NAMES = {
    **body("electra"),
    "words.dense": "generator_predictions.dense",
    "words.norm": "generator_predictions.LayerNorm",
    "words.words": "generator_lm_head",
    "words.bias": "generator_lm_head.bias",
    "replaced.dense": "discriminator_predictions.dense",
    "replaced.answer": "discriminator_predictions.dense_prediction",
    "classify.pool": "classifier.dense",
    "classify.classes": "classifier.out_proj",
    "choice.pool": "sequence_summary.summary",
}


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """The summary's options matter to one class only, which is supported as it was published."""
    if "ElectraForMultipleChoice" in config["architectures"]:
        for name, wanted in (("summary_type", "first"), ("summary_use_proj", True)):
            if config.get(name, wanted) != wanted:
                raise ConfigError(f'"{name}" is {config[name]!r}; anyformer supports only {wanted!r}.')
    return config


TABLE = KeyTable(
    family="electra",
    model_type="electra",
    architectures=classes("Electra", ForPreTraining="replaced_tokens"),
    fields=(
        *with_defaults(FIELDS, hidden_size=256, num_attention_heads=4, intermediate_size=1024),
        *DECODER,
        TYPES,
        ConfigField("d_embedding", "embedding_size", 128),
        ConfigField("vocab_size", "vocab_size", 30522),
        ConfigField("head_dropout", "classifier_dropout", None),
        activation("summary_activation", "gelu", "choice_activation"),
        ConfigField("choice_dropout", "summary_last_dropout", 0.1),
        ConfigField("padding", "pad_token_id", 0),
    ),
    **by_names("electra", NAMES, prefix="electra", aliases=SPELLINGS),
    required_values={"position_embedding_type": ("absolute",)},
    ignored_fields=frozenset({"summary_type", "summary_use_proj"}),
    upgrade_config=adjust,
    extra_fields=lambda config, today: {"embedding_size": config.width},
)
