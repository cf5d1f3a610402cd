"""GPT: as GPT-2, with other names for the positions and the words."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, decoder_classes, with_defaults
from anyformer.checkpoints.key_tables import gpt2
from anyformer.checkpoints.names import by_names
from anyformer.errors import ConfigError

_NAMES = {
    **{ours: theirs for ours, theirs in gpt2.NAMES.items() if ours != "decoder.final_norm"},
    "decoder.inputs.words": "transformer.tokens_embed",
    "decoder.inputs.positions": "transformer.positions_embed",
}
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_FIXED: dict[str, Any] = {"d_hidden": None, "score": "scaled", "scale_by_depth": False, "cross_attention": False}


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
    architectures=decoder_classes("OpenAIGPT", language="LMHeadModel", **_FIXED),
    fields=(
        *with_defaults(gpt2.TABLE.fields, without=("activation", *_FIXED), vocab_size=40478, n_positions=512),
        ConfigField("activation", "afn", "gelu", _read_activation, _write_activation),
    ),
    **by_names("gpt1", _NAMES, prefix="transformer", turned=True, ignored=(r"attn\.bias$",)),
    ignored_fields=gpt2.TABLE.ignored_fields | {"predict_special_tokens"},
)
