"""DeiT: as ViT's table, under its own prefix and with a second token."""

from __future__ import annotations

import re

from anyformer.recipes.deit import DeiT
from anyformer.weights.table import Key, Table, both
from anyformer.weights.tables.vit import FIELDS, LAYER_ALIASES, PLAIN, body


def keys(config: DeiT) -> list[Key]:
    token = "deit.embeddings.distillation_token"
    rows = [
        *body(config, "deit", extra=2),
        Key("encoder.inputs.distill_token.weight", token, "reshape", (1, 1, config.d_model)),
    ]
    if config.head == "base":
        return [*rows, *both("base.pool", "deit.pooler.dense")]
    if config.head == "classify":
        return [*rows, *(both("classify.classes", "classifier") if config.n_labels else [])]
    pair = (*both("distill.classes", "cls_classifier"), *both("distill.taught", "distillation_classifier"))
    return [*rows, *pair]


def leftovers(config: DeiT) -> tuple[str, ...]:
    """Heads of the other classes, and a pooler where it is not read."""
    heads = {"classify": r"^classifier\.", "distill": r"^(cls|distillation)_classifier\.", "base": r"^deit\.pooler\."}
    return (*(pattern for head, pattern in heads.items() if head != config.head), r"^deit\.embeddings\.mask_token$")


def rename(config: DeiT, name: str) -> str:
    return re.sub(r"^deit\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="deit",
    model_type="deit",
    architectures={
        "DeiTModel": {"head": "base", **PLAIN},
        "DeiTForImageClassification": {"head": "classify", **PLAIN},
        "DeiTForImageClassificationWithTeacher": {"head": "distill", **PLAIN},
    },
    fields=FIELDS,
    keys=keys,
    inert=frozenset({"encoder_stride"}),
    aliases=(
        (r"^(embeddings|encoder|layers|layernorm|pooler)\.", r"deit.\1."),
        (r"^deit\.layers\.", "deit.encoder.layer."),
        *LAYER_ALIASES,
    ),
    leftovers=leftovers,
    rename=rename,
)
