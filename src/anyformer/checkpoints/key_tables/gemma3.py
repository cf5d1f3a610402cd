"""Gemma 1, 2 and 3 (text): as Llama, with norms that count from 1; from 2 on on both sides, from 3 on two rotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, activation, decoder_classes, with_defaults
from anyformer.checkpoints.key_tables.llama import BIASES, IDS, fields, names, one_bias, plain
from anyformer.checkpoints.key_tables.qwen import FULL, SLIDING, WINDOWS, write_types
from anyformer.checkpoints.key_tables.rope import gather, read_rope, write_rope
from anyformer.checkpoints.names import by_names
from anyformer.core.rope import RopeConfig
from anyformer.errors import ConfigError
from anyformer.recipes.llama import LlamaConfig
from anyformer.schema import shown

_BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}


def read_ropes(given: Any, bases: Mapping[str, float] = _BASES) -> tuple[RopeConfig, ...]:
    """Of layers that see everything, and of those with a window; `bases` are theirs where the config says none."""
    return tuple(read_rope({"rope_theta": base, **(given.get(kind) or {})}) for kind, base in bases.items())


def write_ropes(ropes: tuple[RopeConfig, ...]) -> dict[str, Any]:
    return {FULL: write_rope(ropes[0]), SLIDING: write_rope(ropes[-1])}


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Older folders have a base for each kind of layer, a scaling for the full ones, and a number for the pattern."""
    config = dict(config)
    older = {FULL: config.pop("rope_theta", None), SLIDING: config.pop("rope_local_base_freq", None)}
    scaling = config.pop("rope_scaling", None)
    given = config.get("rope_parameters") or {}
    strange = [name for name, value in given.items() if name not in older or not isinstance(value, dict | None)]
    if strange:
        raise ConfigError(
            f'"rope_parameters" has "{strange[0]}": {shown(given[strange[0]])}; it takes an object for {FULL} and one'
            f" for {SLIDING}"
        )
    ropes = {}
    for kind, base in older.items():
        stretched = (scaling or {}) if kind == FULL else {}
        ropes[kind] = {**({} if base is None else {"rope_theta": base}), **(given.get(kind) or {}), **stretched}
    config["rope_parameters"] = ropes
    if config.get("layer_types") is None:
        every = config.get("sliding_window_pattern", 6)
        layers = range(config.get("num_hidden_layers", 26))
        config["layer_types"] = [SLIDING if (i + 1) % every else FULL for i in layers]
    return config


def extras(config: LlamaConfig, today: dict[str, Any]) -> dict[str, Any]:
    one_bias(config, today)
    return {"layer_types": write_types(config)}


SANDWICH = {
    "self.post_norm": "post_attention_layernorm",
    "feedforward.norm": "pre_feedforward_layernorm",
    "feedforward.post_norm": "post_feedforward_layernorm",
}
_GEMMA = {"norm": "rms_offset", "scale_embedding": True}
_PLAIN = plain(
    *("window", "scale", "qkv_bias", "out_bias"),
    **_GEMMA | {"norm_order": "sandwich", "qk_norm": True},
)
_CLASSES = {
    "Gemma3ForCausalLM": {"head": "language"},
    "Gemma3TextModel": {"head": "base"},
    "Gemma3TextForSequenceClassification": {"head": "classify", "pooling": "last"},
}

TABLE = KeyTable(
    family="gemma3",
    model_type="gemma3_text",
    architectures={name: _PLAIN | ours for name, ours in _CLASSES.items()},
    fields=(
        *with_defaults(
            fields(d_hidden=9216, vocab_size=262208, max_length=131072, n_kv_heads=4, d_head=256),
            without=("activation", "ropes"),
            num_hidden_layers=26,
            hidden_size=2304,
            num_attention_heads=8,
            tie_word_embeddings=True,
        ),
        *with_defaults(IDS, pad_token_id=0, eos_token_id=1),
        *BIASES,
        *WINDOWS,
        activation("hidden_activation", "gelu_pytorch_tanh"),
        ConfigField("ropes", "rope_parameters", {}, read_ropes, write_ropes),
        ConfigField("scale", "query_pre_attn_scalar", 256, float, int),
        ConfigField("logit_cap", "final_logit_softcapping", None),
    ),
    **by_names("gemma3", names(**SANDWICH), prefix="model"),
    required_values={"use_bidirectional_attention": (False, None)},
    # The class keeps attn_logit_softcapping and does not use it; the pattern is read into layer_types.
    ignored_fields=frozenset(
        {"attn_logit_softcapping", "sliding_window_pattern", "cache_implementation", "hidden_act"}
    ),
    upgrade_config=adjust,
    extra_fields=extras,
)

_gather = gather()
_IDS = with_defaults(IDS, pad_token_id=0, eos_token_id=1)


def _adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Folders of the first Gemma say gelu and mean its approximation."""
    config = _gather(config)
    return {**config, "hidden_act": "gelu_pytorch_tanh"} if config.get("hidden_act") == "gelu" else config


def _adjust2(config: dict[str, Any]) -> dict[str, Any]:
    config = _gather(config)
    if config.get("layer_types") is None:
        layers = range(config.get("num_hidden_layers", 26))
        config["layer_types"] = [FULL if i % 2 else SLIDING for i in layers]
    return config


GEMMA = KeyTable(
    family="gemma",
    model_type="gemma",
    architectures=decoder_classes("Gemma", **plain("qkv_bias", "out_bias", **_GEMMA)),
    fields=(
        *with_defaults(
            fields(d_hidden=24576, vocab_size=256000, max_length=8192, n_kv_heads=16, d_head=256),
            num_hidden_layers=28,
            hidden_size=3072,
            num_attention_heads=16,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
        ),
        *_IDS,
        *BIASES,
    ),
    **by_names("gemma", names(), prefix="model"),
    required_values={"use_bidirectional_attention": (False, None)},
    ignored_fields=frozenset({"hidden_activation"}),  # as the class does
    upgrade_config=_adjust,
    extra_fields=one_bias,
)
GEMMA2 = KeyTable(
    family="gemma2",
    model_type="gemma2",
    architectures=decoder_classes(
        "Gemma2", **plain("window", "scale", "qkv_bias", "out_bias", norm_order="sandwich", **_GEMMA)
    ),
    fields=(
        *with_defaults(
            fields(d_hidden=9216, vocab_size=256000, max_length=8192, n_kv_heads=4, d_head=256),
            without=("activation",),
            num_hidden_layers=26,
            hidden_size=2304,
            num_attention_heads=8,
            tie_word_embeddings=True,
        ),
        *_IDS,
        *BIASES,
        *WINDOWS,
        activation("hidden_activation", "gelu_pytorch_tanh"),
        ConfigField("scale", "query_pre_attn_scalar", 256, float, int),
        ConfigField("score_cap", "attn_logit_softcapping", 50.0),
        ConfigField("logit_cap", "final_logit_softcapping", 30.0),
    ),
    **by_names("gemma2", names(**SANDWICH), prefix="model"),
    required_values={"use_bidirectional_attention": (False, None)},
    ignored_fields=frozenset({"cache_implementation", "hidden_act"}),
    upgrade_config=_adjust2,
    extra_fields=extras,
)
