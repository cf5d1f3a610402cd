"""Qwen2 and Qwen3: as Llama, with windows in some layers."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, decoder_classes, with_defaults
from anyformer.checkpoints.key_tables.llama import BIASES, IDS, fields, names, one_bias, plain
from anyformer.checkpoints.key_tables.rope import gather
from anyformer.checkpoints.names import by_names
from anyformer.errors import ConfigError
from anyformer.recipes.llama import LlamaConfig

FULL, SLIDING = "full_attention", "sliding_attention"
_gather = gather()


def read_types(types: Any) -> tuple[bool, ...]:
    """For each layer, whether it has the window."""
    strange = [kind for kind in types if kind not in (FULL, SLIDING)]
    if strange:
        raise ConfigError(f'a layer type is "{strange[0]}"; it can be {FULL} or {SLIDING}')
    return tuple(kind == SLIDING for kind in types)


def write_types(config: Any) -> list[str]:
    return [SLIDING if windowed else FULL for windowed in config.windows]


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Older folders say from which layer on there are windows."""
    config = _gather(config)
    if not config.get("use_sliding_window", False):
        config["sliding_window"] = None
    window, first = config.get("sliding_window", 4096), config.get("max_window_layers", 28)
    if config.get("layer_types") is None:
        layers = range(config.get("num_hidden_layers", 32))
        config["layer_types"] = [SLIDING if window is not None and i >= first else FULL for i in layers]
    return config


def extras(config: LlamaConfig, today: dict[str, Any]) -> dict[str, Any]:
    if config.qk_norm:  # Qwen3; the biases of Qwen2 are not in its config
        one_bias(config, today)
    return {"use_sliding_window": config.window is not None, "layer_types": write_types(config)}


WINDOWS = (
    ConfigField("window", "sliding_window", 4096),
    ConfigField("windowed", "layer_types", (), read_types, list),
)
_IDS = with_defaults(IDS, eos_token_id=None)
_INERT = frozenset({"use_sliding_window", "max_window_layers"})

QWEN2 = KeyTable(
    family="qwen2",
    model_type="qwen2",
    architectures=decoder_classes("Qwen2", **plain("window", qkv_bias=True)),
    fields=(
        *fields(d_hidden=22016, vocab_size=151936, max_length=32768, n_kv_heads=32),
        *_IDS,
        *WINDOWS,
    ),
    **by_names("qwen2", names(), prefix="model"),
    ignored_fields=_INERT,
    upgrade_config=adjust,
    extra_fields=extras,
)
QWEN3 = KeyTable(
    family="qwen3",
    model_type="qwen3",
    architectures=decoder_classes("Qwen3", **plain("window", "qkv_bias", "out_bias", qk_norm=True)),
    fields=(
        *fields(d_hidden=22016, vocab_size=151936, max_length=32768, n_kv_heads=32, d_head=128),
        *_IDS,
        *WINDOWS,
        *BIASES,
    ),
    **by_names("qwen3", names(), prefix="model"),
    ignored_fields=_INERT,
    upgrade_config=adjust,
    extra_fields=extras,
)
