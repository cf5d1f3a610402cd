"""Llama, and the rows that its kin share with it."""

from __future__ import annotations

from typing import Any

from anyformer.errors import ConfigError
from anyformer.recipes.llama import Llama
from anyformer.weights.table import Field, Key, Table, activation, both, each_layer, spoken
from anyformer.weights.tables.rope import gather, read_ropes, write_ropes

NORMS = {"self.norm": "input_layernorm", "feedforward.norm": "post_attention_layernorm"}
SANDWICH = {
    "self.norm": "input_layernorm",
    "self.after": "post_attention_layernorm",
    "feedforward.norm": "pre_feedforward_layernorm",
    "feedforward.after": "post_feedforward_layernorm",
}
# What Llama does not have and its kin may: a class can only say what its table maps.
PLAIN = {
    "norm": "rms",
    "sandwich": False,
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
    return both(ours, theirs)[: 2 if bias else 1]


def _layer(config: Llama) -> list[Key]:
    block, theirs = "decoder.blocks.{i}", "model.layers.{i}"
    norms = SANDWICH if config.sandwich else NORMS
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


def keys(config: Llama) -> list[Key]:
    return [
        *spoken(config.tied, "model.embed_tokens.weight"),
        *each_layer(config.n_layers, _layer(config)),
        Key("decoder.final_norm.weight", "model.norm.weight"),
    ]


def plain(*mapped: str, **other: Any) -> dict[str, Any]:
    """`PLAIN` without the fields that the class's own config says, and with those that it has fixed otherwise."""
    return {name: value for name, value in (PLAIN | other).items() if name not in mapped}


def one_bias(config: Llama, today: dict[str, Any]) -> dict[str, Any]:
    """Theirs has one field for the biases of all four projections."""
    if config.qkv_bias != config.out_bias:
        raise ConfigError("qkv_bias and out_bias differ; the Hugging Face form of this family has one field for both.")
    return {}


def read_end(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def write_end(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def leftovers(config: Llama) -> tuple[str, ...]:
    return (r"rotary_emb\.inv_freq$",)


def fields(
    *, d_hidden: int, vocab_size: int, max_length: int, n_kv_heads: int | None, d_head: int | None = None
) -> tuple[Field, ...]:
    """The fields of all Llama-like configs, with the values that the family assumes."""
    return (
        Field("n_layers", "num_hidden_layers", 32),
        Field("d_model", "hidden_size", 4096),
        Field("n_heads", "num_attention_heads", 32),
        Field("n_kv_heads", "num_key_value_heads", n_kv_heads),
        Field("d_head", "head_dim", d_head),
        Field("d_hidden", "intermediate_size", d_hidden),
        Field("vocab_size", "vocab_size", vocab_size),
        Field("max_length", "max_position_embeddings", max_length),
        activation("hidden_act", "silu"),
        Field("norm_eps", "rms_norm_eps", 1e-6),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("tied", "tie_word_embeddings", False),
        Field("init_std", "initializer_range", 0.02),
        Field("ropes", "rope_parameters", None, read_ropes, write_ropes),
    )


BIASES = (Field("qkv_bias", "attention_bias", False), Field("out_bias", "attention_bias", False))
IDS = (Field("padding", "pad_token_id", None), Field("end", "eos_token_id", 2, read_end, write_end))

TABLE = Table(
    family="llama",
    model_type="llama",
    architectures={"LlamaForCausalLM": plain("qkv_bias", "out_bias", "hidden_bias")},
    fields=(
        *fields(d_hidden=11008, vocab_size=32000, max_length=2048, n_kv_heads=None),
        *IDS,
        *BIASES,
        Field("hidden_bias", "mlp_bias", False),
    ),
    keys=keys,
    inert=frozenset({"pretraining_tp", "is_llama_config", "max_sequence_length"}),  # read by nobody
    leftovers=leftovers,
    adjust=gather(),
    extras=one_bias,
)
