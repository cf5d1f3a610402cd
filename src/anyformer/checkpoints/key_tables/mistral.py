"""Mistral: as Llama, with a window in every layer."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ConfigField, KeyTable, decoder_classes
from anyformer.checkpoints.key_tables.llama import IDS, fields, names, plain
from anyformer.checkpoints.key_tables.rope import gather
from anyformer.checkpoints.names import by_names

TABLE = KeyTable(
    family="mistral",
    model_type="mistral",
    architectures=decoder_classes("Mistral", **plain("window", windowed=(True,))),
    fields=(
        *fields(d_hidden=14336, vocab_size=32000, max_length=131072, n_kv_heads=8),
        *IDS,
        ConfigField("window", "sliding_window", 4096),
    ),
    **by_names("mistral", names(), prefix="model"),
    ignored_fields=frozenset({"layer_types"}),  # of its kin: this class ignores it
    upgrade_config=gather(),
)
