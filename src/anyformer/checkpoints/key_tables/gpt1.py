"""GPT: as GPT-2, with other names for the positions and the words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, with_defaults
from anyformer.checkpoints.key_tables import gpt2
from anyformer.errors import ConfigError
from anyformer.recipes.gpt2 import GPT2Config

_NAMES = {
    "transformer.wte.weight": "transformer.tokens_embed.weight",
    "transformer.wpe.weight": "transformer.positions_embed.weight",
}
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_FIXED = {"d_hidden": None, "score": "scaled", "scale_by_depth": False, "cross_attention": False}


def keys(config: GPT2Config) -> list[Key]:
    rows = [replace(key, theirs=_NAMES.get(key.theirs, key.theirs)) for key in gpt2.keys(config)]
    return [key for key in rows if not key.theirs.startswith("transformer.ln_f.")]


def _read_activation(name: Any) -> str:
    if name not in _ACTIVATIONS:
        raise ConfigError(f"it can be {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _write_activation(name: str) -> str:
    found = [theirs for theirs, ours in _ACTIVATIONS.items() if ours == name]
    if not found:
        raise ConfigError(f'The Hugging Face form of this family has no activation "{name}".')
    return found[0]


TABLE = KeyTable(
    family="gpt1",
    model_type="openai-gpt",
    architectures={"OpenAIGPTLMHeadModel": _FIXED},
    fields=(
        *with_defaults(gpt2.TABLE.fields, without=("activation", *_FIXED), vocab_size=40478, n_positions=512),
        ConfigField("activation", "afn", "gelu", _read_activation, _write_activation),
    ),
    keys=keys,
    ignored_fields=gpt2.TABLE.ignored_fields | {"predict_special_tokens"},
    aliases=((r"^(tokens_embed|positions_embed|h)\.", r"transformer.\1."),),
    ignored_keys=lambda config: (r"attn\.bias$", r"position_ids$"),
)
