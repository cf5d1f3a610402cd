"""Mistral: as Llama, with a window in every layer."""

from __future__ import annotations

from anyformer.weights.table import Field, Table
from anyformer.weights.tables.llama import IDS, fields, keys, leftovers, plain
from anyformer.weights.tables.rope import gather

TABLE = Table(
    family="mistral",
    model_type="mistral",
    architectures={"MistralForCausalLM": plain("window", windowed=(True,))},
    fields=(
        *fields(d_hidden=14336, vocab_size=32000, max_length=131072, n_kv_heads=8),
        *IDS,
        Field("window", "sliding_window", 4096),
    ),
    keys=keys,
    inert=frozenset({"layer_types"}),  # of its kin: this class ignores it
    leftovers=leftovers,
    adjust=gather(),
)
