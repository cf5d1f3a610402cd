"""DeiT: as ViT's table, under its own prefix and with a second token."""

from __future__ import annotations

from anyformer.checkpoints.key_table import KeyTable
from anyformer.checkpoints.key_tables.vit import FIELDS, MASK, PLAIN, aliases, body
from anyformer.checkpoints.names import batch_of_one, by_names

NAMES = {
    **body("deit"),
    "encoder.inputs.distill_token.weight": batch_of_one("deit.embeddings.distillation_token"),
    "base.pool": "deit.pooler.dense",
    "classify.classes": "classifier",
    "distill.classes": "cls_classifier",
    "distill.taught": "distillation_classifier",
}

TABLE = KeyTable(
    family="deit",
    model_type="deit",
    architectures={
        "DeiTModel": {"head": "base", **PLAIN},
        "DeiTForImageClassification": {"head": "classify", **PLAIN},
        "DeiTForImageClassificationWithTeacher": {"head": "distill", **PLAIN},
    },
    fields=FIELDS,
    **by_names("deit", NAMES, prefix="deit", aliases=aliases("deit"), ignored=MASK),
    ignored_fields=frozenset({"encoder_stride"}),
)
