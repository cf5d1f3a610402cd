"""Mistral: as Llama, with a window in every layer."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ConfigField, KeyTable
from anyformer.checkpoints.key_tables.llama import IDS, fields, ignored_keys, keys, plain
from anyformer.checkpoints.key_tables.rope import gather

TABLE = KeyTable(
    family="mistral",
    model_type="mistral",
    architectures={"MistralForCausalLM": plain("window", windowed=(True,))},
    fields=(
        *fields(d_hidden=14336, vocab_size=32000, max_length=131072, n_kv_heads=8),
        *IDS,
        ConfigField("window", "sliding_window", 4096),
    ),
    keys=keys,
    ignored_fields=frozenset({"layer_types"}),  # of its kin: this class ignores it
    ignored_keys=ignored_keys,
    upgrade_config=gather(),
)
