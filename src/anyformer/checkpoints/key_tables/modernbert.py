"""ModernBERT: one matrix for queries, keys and values, one for the gate and what it opens."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, activation
from anyformer.checkpoints.key_tables.gemma3 import read_ropes, write_ropes
from anyformer.checkpoints.key_tables.qwen import FULL, SLIDING, read_types, write_types
from anyformer.checkpoints.names import by_names, under
from anyformer.recipes.modernbert import ModernBERTConfig

_LAYER = {
    "self.norm": "attn_norm",
    "self.qkv": "attn.Wqkv",
    "self.out": "attn.Wo",
    "feedforward.norm": "mlp_norm",
    "feedforward.gate_up": "mlp.Wi",
    "feedforward.down": "mlp.Wo",
}
NAMES = {
    "encoder.inputs.words": "model.embeddings.tok_embeddings",
    "encoder.inputs.norm": "model.embeddings.norm",
    **under("encoder.blocks.{i}", "model.layers.{i}", _LAYER),
    "encoder.final_norm": "model.final_norm",
    "words.dense": "head.dense",
    "words.norm": "head.norm",
    "words.words": "decoder",
    "words.bias": "decoder.bias",
    "classify.pool": "head.dense",
    "classify.pool.last_norm": "head.norm",
    "classify.classes": "classifier",
}
_BASES = {FULL: 160_000.0, SLIDING: 10_000.0}
_POOLING = {"cls": "first", "mean": "mean"}
_WRITTEN = {ours: theirs for theirs, ours in _POOLING.items()}


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Older folders have a base for each kind of layer, and every how many layers one sees everything."""
    config = dict(config)
    ropes = dict(config.get("rope_parameters") or {})
    for kind, name in ((FULL, "global_rope_theta"), (SLIDING, "local_rope_theta")):
        base, stretched = config.pop(name, None), config.get("rope_scaling") or {}
        ropes[kind] = {**({} if base is None else {"rope_theta": base}), **stretched, **(ropes.get(kind) or {})}
    config.pop("rope_scaling", None)
    if config.get("layer_types") is None:
        every, layers = config.get("global_attn_every_n_layers", 3), range(config.get("num_hidden_layers", 22))
        config["layer_types"] = [SLIDING if i % every else FULL for i in layers]
    return {**config, "rope_parameters": ropes}


def extras(config: ModernBERTConfig, today: dict[str, Any]) -> dict[str, Any]:
    return {"layer_types": write_types(config), "decoder_bias": True}


TABLE = KeyTable(
    family="modernbert",
    model_type="modernbert",
    architectures={
        "ModernBertModel": {"head": "base"},
        "ModernBertForMaskedLM": {"head": "masked"},
        "ModernBertForSequenceClassification": {"head": "classify"},
    },
    fields=(
        ConfigField("n_layers", "num_hidden_layers", 22),
        ConfigField("d_model", "hidden_size", 768),
        ConfigField("n_heads", "num_attention_heads", 12),
        ConfigField("d_hidden", "intermediate_size", 1152),
        ConfigField("vocab_size", "vocab_size", 50368),
        ConfigField("max_length", "max_position_embeddings", 8192),
        activation("hidden_activation", "gelu"),
        ConfigField("norm_eps", "norm_eps", 1e-5),
        ConfigField("norm_bias", "norm_bias", False),
        ConfigField("qkv_bias", "attention_bias", False),
        ConfigField("out_bias", "attention_bias", False),
        ConfigField("hidden_bias", "mlp_bias", False),
        ConfigField("attention_dropout", "attention_dropout", 0.0),
        ConfigField("embedding_dropout", "embedding_dropout", 0.0, write=lambda rate: rate or 0.0),
        ConfigField("hidden_dropout", "mlp_dropout", 0.0, write=lambda rate: rate or 0.0),
        ConfigField("head_dropout", "classifier_dropout", 0.0, write=lambda rate: rate or 0.0),
        ConfigField("ropes", "rope_parameters", {}, lambda given: read_ropes(given, _BASES), write_ropes),
        ConfigField("window", "local_attention", 128),
        ConfigField("windowed", "layer_types", (), read_types, list),
        activation("classifier_activation", "gelu", "head_activation"),
        ConfigField("head_bias", "classifier_bias", False),
        ConfigField(
            "pooling",
            "classifier_pooling",
            "cls",
            _POOLING.__getitem__,
            lambda ours: {v: k for k, v in _POOLING.items()}[ours],
        ),
        ConfigField("tied", "tie_word_embeddings", True),
        ConfigField("padding", "pad_token_id", 50283),
        LABELS,
        PROBLEM,
    ),
    **by_names("modernbert", NAMES, prefix="model"),
    required_values={"decoder_bias": (True,), "sparse_prediction": (False,)},
    # How fresh weights are drawn, how a kernel is chosen, and what layer_types says in a longer form.
    ignored_fields=frozenset(
        "initializer_cutoff_factor deterministic_flash_attn reference_compile repad_logits_with_grad cls_token_id"
        " sparse_pred_ignore_index global_attn_every_n_layers norm_first position_embedding_type".split()
    ),
    upgrade_config=adjust,
    extra_fields=extras,
)
