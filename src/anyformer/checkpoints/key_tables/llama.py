"""Llama, and the rows that its kin share with it."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, activation, decoder_classes
from anyformer.checkpoints.key_tables.rope import gather, read_ropes, write_ropes
from anyformer.checkpoints.names import by_names, under
from anyformer.errors import ConfigError
from anyformer.recipes.llama import LlamaConfig

LAYER = {
    "self.norm": "input_layernorm",
    **{f"self.{role}": f"self_attn.{role[0]}_proj" for role in ("query", "key", "value")},
    **{f"self.{role}_norm": f"self_attn.{role[0]}_norm" for role in ("query", "key")},
    "self.out": "self_attn.o_proj",
    "feedforward.norm": "post_attention_layernorm",
    **{f"feedforward.{role}": f"mlp.{role}_proj" for role in ("gate", "up", "down")},
}


def names(**layer: str) -> dict[str, Any]:
    """What all the kin are called, with other names in a layer."""
    return {
        "decoder.inputs.words": "model.embed_tokens",
        **under("decoder.blocks.{i}", "model.layers.{i}", LAYER | layer),
        "decoder.final_norm": "model.norm",
        "language.words": "lm_head",
        "classify.classes": "score",
    }


# What Llama does not have and its kin may: a class can only say what its table maps.
PLAIN = {
    "norm": "rms",
    "norm_order": "pre",
    "qk_norm": False,
    "qkv_bias": False,
    "out_bias": False,
    "hidden_bias": False,
    "scale": None,
    "window": None,
    "scale_embedding": False,
}


def plain(*mapped: str, **other: Any) -> dict[str, Any]:
    """`PLAIN` without the fields that the class's own config says, and with those that it has fixed otherwise."""
    return {name: value for name, value in (PLAIN | other).items() if name not in mapped}


def one_bias(config: LlamaConfig, today: dict[str, Any]) -> dict[str, Any]:
    """Theirs has one field for the biases of all four projections."""
    if config.qkv_bias != config.out_bias:
        raise ConfigError("qkv_bias and out_bias differ; the Hugging Face form of this family has one field for both.")
    return {}


def read_end(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def write_end(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def fields(
    *, d_hidden: int, vocab_size: int, max_length: int, n_kv_heads: int | None, d_head: int | None = None
) -> tuple[ConfigField, ...]:
    """The fields of all Llama-like configs, with the values that the family assumes."""
    return (
        ConfigField("n_layers", "num_hidden_layers", 32),
        ConfigField("d_model", "hidden_size", 4096),
        ConfigField("n_heads", "num_attention_heads", 32),
        ConfigField("n_kv_heads", "num_key_value_heads", n_kv_heads),
        ConfigField("d_head", "head_dim", d_head),
        ConfigField("d_hidden", "intermediate_size", d_hidden),
        ConfigField("vocab_size", "vocab_size", vocab_size),
        ConfigField("max_length", "max_position_embeddings", max_length),
        activation("hidden_act", "silu"),
        ConfigField("norm_eps", "rms_norm_eps", 1e-6),
        ConfigField("attention_dropout", "attention_dropout", 0.0),
        ConfigField("tied", "tie_word_embeddings", False),
        ConfigField("init_std", "initializer_range", 0.02),
        ConfigField("ropes", "rope_parameters", None, read_ropes, write_ropes),
        LABELS,
        PROBLEM,
    )


BIASES = (ConfigField("qkv_bias", "attention_bias", False), ConfigField("out_bias", "attention_bias", False))
IDS = (ConfigField("padding", "pad_token_id", None), ConfigField("end", "eos_token_id", 2, read_end, write_end))

TABLE = KeyTable(
    family="llama",
    model_type="llama",
    architectures=decoder_classes("Llama", **plain("qkv_bias", "out_bias", "hidden_bias")),
    fields=(
        *fields(d_hidden=11008, vocab_size=32000, max_length=2048, n_kv_heads=None),
        *IDS,
        *BIASES,
        ConfigField("hidden_bias", "mlp_bias", False),
    ),
    **by_names("llama", names(), prefix="model"),
    ignored_fields=frozenset({"pretraining_tp", "is_llama_config", "max_sequence_length"}),  # read by nobody
    upgrade_config=gather(),
    extra_fields=one_bias,
)
