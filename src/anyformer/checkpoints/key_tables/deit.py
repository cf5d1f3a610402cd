"""DeiT: as ViT's table, under its own prefix and with a second token."""

from __future__ import annotations

from anyformer.checkpoints.key_table import Key, KeyTable, strip_prefix, vectors, weight_and_bias
from anyformer.checkpoints.key_tables.vit import FIELDS, PLAIN, aliases, body, classes
from anyformer.recipes.deit import DeiTConfig


def keys(config: DeiTConfig) -> list[Key]:
    token = "deit.embeddings.distillation_token"
    rows = [*body(config, "deit", extra=2), vectors("encoder.inputs.distill_token.weight", token, 1, config.d_model)]
    if config.head == "base":
        return [*rows, *weight_and_bias("base.pool", "deit.pooler.dense")]
    if config.head == "classify":
        return [*rows, *classes(config)]
    return [
        *rows,
        *weight_and_bias("distill.classes", "cls_classifier"),
        *weight_and_bias("distill.taught", "distillation_classifier"),
    ]


def ignored_keys(config: DeiTConfig) -> tuple[str, ...]:
    """Heads of the other classes, and a pooler where it is not read."""
    heads = {"classify": r"^classifier\.", "distill": r"^(cls|distillation)_classifier\.", "base": r"^deit\.pooler\."}
    return (*(pattern for head, pattern in heads.items() if head != config.head), r"^deit\.embeddings\.mask_token$")


TABLE = KeyTable(
    family="deit",
    model_type="deit",
    architectures={
        "DeiTModel": {"head": "base", **PLAIN},
        "DeiTForImageClassification": {"head": "classify", **PLAIN},
        "DeiTForImageClassificationWithTeacher": {"head": "distill", **PLAIN},
    },
    fields=FIELDS,
    keys=keys,
    ignored_fields=frozenset({"encoder_stride"}),
    aliases=aliases("deit"),
    ignored_keys=ignored_keys,
    rename=strip_prefix("deit."),
)
