"""ELECTRA, discriminator and generator: BERT's names, narrower word vectors, other heads."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import (
    ConfigField,
    Key,
    KeyTable,
    activation,
    strip_prefix,
    weight_and_bias,
    with_defaults,
)
from anyformer.checkpoints.key_tables.bert import (
    DECODER,
    FIELDS,
    OLD_BUFFERS,
    SPELLINGS,
    TYPES,
    classes,
    inputs,
    layers,
)
from anyformer.checkpoints.key_tables.roberta import heads
from anyformer.errors import ConfigError
from anyformer.recipes.electra import ELECTRAConfig

_HEADS = {"replaced_tokens": r"^discriminator_predictions\.", "masked": r"^generator_"}


def project(d_embedding: int | None, d_model: int, theirs: str) -> list[Key]:
    """Narrower word vectors are widened behind their norm."""
    same = d_embedding in (None, d_model)
    return [] if same else weight_and_bias("encoder.inputs.project", f"{theirs}.embeddings_project")


def keys(config: ELECTRAConfig) -> list[Key]:
    use, words = config.head, "generator_lm_head"
    also = (f"{words}.weight",) if config.tied and use == "masked" else ()
    rows = [
        *inputs("electra.embeddings", ("words", "positions", "types"), also),
        *project(config.d_embedding, config.d_model, "electra"),
        *layers(config.n_layers, "electra.encoder.layer.{i}", config.cross_attention),
    ]
    if use == "masked":
        rows += weight_and_bias("words.dense", "generator_predictions.dense")
        rows += weight_and_bias("words.norm", "generator_predictions.LayerNorm")
        rows += [Key("words.bias", f"{words}.bias")]
        rows += [] if config.tied else [Key("words.words.weight", f"{words}.weight")]
    if use == "replaced_tokens":
        rows += weight_and_bias("replaced.dense", "discriminator_predictions.dense")
        rows += weight_and_bias("replaced.answer", "discriminator_predictions.dense_prediction")
    if use == "choice":
        rows += weight_and_bias("choice.pool", "sequence_summary.summary")
    return rows + heads(use)


def ignored_keys(config: ELECTRAConfig) -> tuple[str, ...]:
    return (OLD_BUFFERS, *(pattern for use, pattern in _HEADS.items() if use != config.head))


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
    keys=keys,
    required_values={"position_embedding_type": ("absolute",)},
    ignored_fields=frozenset({"summary_type", "summary_use_proj"}),
    aliases=(*SPELLINGS, (r"^(embeddings|embeddings_project|encoder)\.", r"electra.\1.")),
    ignored_keys=ignored_keys,
    upgrade_config=adjust,
    extra_fields=lambda config, today: {"embedding_size": config.width},
    rename=strip_prefix("electra."),
)
