"""Llama, and the rows that its kin share with it."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import (
    ConfigField,
    Key,
    KeyTable,
    activation,
    each_layer,
    lm_head_keys,
    weight_and_bias,
)
from anyformer.checkpoints.key_tables.rope import gather, read_ropes, write_ropes
from anyformer.errors import ConfigError
from anyformer.recipes.llama import LlamaConfig

NORMS = {"self.norm": "input_layernorm", "feedforward.norm": "post_attention_layernorm"}
SANDWICH = {
    "self.norm": "input_layernorm",
    "self.post_norm": "post_attention_layernorm",
    "feedforward.norm": "pre_feedforward_layernorm",
    "feedforward.post_norm": "post_feedforward_layernorm",
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
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


def _linear(ours: str, theirs: str, bias: bool) -> list[Key]:
    return weight_and_bias(ours, theirs)[: 2 if bias else 1]


def _layer(config: LlamaConfig) -> list[Key]:
    block, theirs = "decoder.blocks.{i}", "model.layers.{i}"
    norms = SANDWICH if config.norm_order == "sandwich" else NORMS
    rows = [Key(f"{block}.{ours}.weight", f"{theirs}.{name}.weight") for ours, name in norms.items()]
    for role, name in _ATTENTION.items():
        rows += _linear(f"{block}.self.{role}", f"{theirs}.self_attn.{name}", config.qkv_bias)
    rows += _linear(f"{block}.self.out", f"{theirs}.self_attn.o_proj", config.out_bias)
    if config.qk_norm:
        rows += [
            Key(f"{block}.self.{role}_norm.weight", f"{theirs}.self_attn.{role[0]}_norm.weight")
            for role in ("query", "key")
        ]
    for role in ("gate", "up", "down"):
        rows += _linear(f"{block}.feedforward.{role}", f"{theirs}.mlp.{role}_proj", config.hidden_bias)
    return rows


def keys(config: LlamaConfig) -> list[Key]:
    return [
        *lm_head_keys(config.tied, "model.embed_tokens.weight"),
        *each_layer(config.n_layers, _layer(config)),
        Key("decoder.final_norm.weight", "model.norm.weight"),
    ]


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


def ignored_keys(config: LlamaConfig) -> tuple[str, ...]:
    return (r"rotary_emb\.inv_freq$",)


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
    )


BIASES = (ConfigField("qkv_bias", "attention_bias", False), ConfigField("out_bias", "attention_bias", False))
IDS = (ConfigField("padding", "pad_token_id", None), ConfigField("end", "eos_token_id", 2, read_end, write_end))

TABLE = KeyTable(
    family="llama",
    model_type="llama",
    architectures={"LlamaForCausalLM": plain("qkv_bias", "out_bias", "hidden_bias")},
    fields=(
        *fields(d_hidden=11008, vocab_size=32000, max_length=2048, n_kv_heads=None),
        *IDS,
        *BIASES,
        ConfigField("hidden_bias", "mlp_bias", False),
    ),
    keys=keys,
    ignored_fields=frozenset({"pretraining_tp", "is_llama_config", "max_sequence_length"}),  # read by nobody
    ignored_keys=ignored_keys,
    upgrade_config=gather(),
    extra_fields=one_bias,
)
