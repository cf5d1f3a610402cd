"""ImageGPT: GPT-2's names, norms without biases, and an output without the row of the first token."""

from __future__ import annotations

from anyformer.checkpoints.key_table import KeyTable, with_defaults
from anyformer.checkpoints.key_tables import gpt2
from anyformer.checkpoints.names import by_names

_DEFAULTS = {"n_layer": 24, "n_embd": 512, "n_head": 8, "vocab_size": 513, "activation_function": "quick_gelu"}

TABLE = KeyTable(
    family="imagegpt",
    model_type="imagegpt",
    architectures={
        "ImageGPTForCausalImageModeling": {"head": "language"},
        "ImageGPTForImageClassification": {"head": "classify"},
        "ImageGPTModel": {"head": "base"},
    },
    fields=(*with_defaults(gpt2.TABLE.fields, without=("tied", "cross_attention"), **_DEFAULTS),),
    **by_names("imagegpt", gpt2.NAMES, prefix="transformer", turned=True, ignored=gpt2.BUFFERS),
    required_values={"tie_word_embeddings": (False,), "add_cross_attention": (False,)},
    ignored_fields=frozenset({"is_decoder", "reorder_and_upcast_attn"}),
)
