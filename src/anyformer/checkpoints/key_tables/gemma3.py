"""Gemma 3, text: as Llama, with norms on both sides and two rotations."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, activation, with_defaults
from anyformer.checkpoints.key_tables.llama import BIASES, IDS, fields, ignored_keys, keys, one_bias, plain
from anyformer.checkpoints.key_tables.qwen import FULL, SLIDING, WINDOWS, write_types
from anyformer.checkpoints.key_tables.rope import read_rope, write_rope
from anyformer.core.rope import RopeConfig
from anyformer.errors import ConfigError
from anyformer.recipes.llama import LlamaConfig
from anyformer.schema import shown

_BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}


def _read_ropes(given: Any) -> tuple[RopeConfig, ...]:
    return tuple(read_rope({"rope_theta": base, **(given.get(kind) or {})}) for kind, base in _BASES.items())


def _write_ropes(ropes: tuple[RopeConfig, ...]) -> dict[str, Any]:
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


TABLE = KeyTable(
    family="gemma3",
    model_type="gemma3_text",
    architectures={
        "Gemma3ForCausalLM": plain(
            *("window", "scale", "qkv_bias", "out_bias"),
            norm="rms_offset",
            norm_order="sandwich",
            qk_norm=True,
            scale_embedding=True,
        )
    },
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
        ConfigField("ropes", "rope_parameters", {}, _read_ropes, _write_ropes),
        ConfigField("scale", "query_pre_attn_scalar", 256, float, int),
    ),
    keys=keys,
    required_values={"final_logit_softcapping": (None,), "use_bidirectional_attention": (False, None)},
    # The class keeps attn_logit_softcapping and does not use it; the pattern is read into layer_types.
    ignored_fields=frozenset(
        {"attn_logit_softcapping", "sliding_window_pattern", "cache_implementation", "hidden_act"}
    ),
    ignored_keys=ignored_keys,
    upgrade_config=adjust,
    extra_fields=extras,
)
