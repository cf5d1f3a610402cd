"""T5, 1.0 and 1.1. The first layer of a stack holds the distances for all of them.

Since version 5 transformers says of every T5 that its output is tied, and whether it is scaled in a field of its own;
older configs say the one by the other. Where the output is not scaled it may be a matrix of its own, and where a file
has none it is the word table's copy.
"""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, activation, each_layer, first, write_activation
from anyformer.errors import ConfigError
from anyformer.recipes.t5 import T5Config

_ROLES = {"query": "q", "key": "k", "value": "v", "out": "o"}
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def _layer(side: str, gated: bool) -> list[Key]:
    block, theirs = f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer"
    parts = {"self": "SelfAttention", **({"cross": "EncDecAttention"} if side == "decoder" else {})}
    rows = []
    for i, (ours, name) in enumerate(parts.items()):
        rows += [Key(f"{block}.{ours}.{r}.weight", f"{theirs}.{i}.{name}.{t}.weight") for r, t in _ROLES.items()]
        rows += [Key(f"{block}.{ours}.norm.weight", f"{theirs}.{i}.layer_norm.weight")]
    dense, last = f"{theirs}.{len(parts)}.DenseReluDense", len(parts)
    names = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    rows += [Key(f"{block}.feedforward.{ours}.weight", f"{dense}.{t}.weight") for ours, t in names.items()]
    return [*rows, Key(f"{block}.feedforward.norm.weight", f"{theirs}.{last}.layer_norm.weight")]


def keys(config: T5Config) -> list[Key]:
    also = (*_COPIES, "lm_head.weight") if config.tied else _COPIES
    rows = [Key("encoder.inputs.words.weight", "shared.weight", also=also)]
    for side, n in (("encoder", config.n_layers), ("decoder", config.decoder_layers)):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows += [
            Key(f"{side}.positions.weight", bias),
            Key(f"{side}.final_norm.weight", f"{side}.final_layer_norm.weight"),
        ]
        rows += each_layer(n, _layer(side, config.gated))
    if not config.tied:
        rows += [Key("language.words.weight", "lm_head.weight", also=("shared.weight", *_COPIES))]
    return rows


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    activation = str(config.get("feed_forward_proj", "relu"))
    gated, _, name = activation.rpartition("-")
    if gated not in ("", "gated"):
        raise ConfigError(f'"feed_forward_proj" is {activation!r}; it takes an activation or "gated-" and one.')
    # Today's class writes tie_word_embeddings as true whatever it has done; its scale tells version 1.1 from the first.
    tied = config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", tied)
    # "gated-gelu" means the approximate form, which the config class spells out.
    name = "gelu_new" if activation == "gated-gelu" else name
    words = {"scale_decoder_outputs": scaled, "tie_word_embeddings": tied and scaled}
    return {**config, **words, "is_gated_act": bool(gated), "dense_act_fn": name}


def extras(config: T5Config, today: dict[str, Any]) -> dict[str, Any]:
    name = write_activation(config.activation)
    name = "gelu" if config.gated and name == "gelu_new" else name
    written: dict[str, Any] = {"num_decoder_layers": config.decoder_layers}
    theirs = {"is_gated_act": config.gated, "dense_act_fn": write_activation(config.activation)}
    if any(today.get(field) != value for field, value in theirs.items()):
        written["feed_forward_proj"] = f"gated-{name}" if config.gated else name
    return written


TABLE = KeyTable(
    family="t5",
    model_type="t5",
    architectures={"T5ForConditionalGeneration": {}},
    fields=(
        ConfigField("n_layers", "num_layers", 6),
        ConfigField("n_decoder_layers", "num_decoder_layers", None),
        ConfigField("d_model", "d_model", 512),
        ConfigField("n_heads", "num_heads", 8),
        ConfigField("d_head", "d_kv", 64),
        ConfigField("d_hidden", "d_ff", 2048),
        ConfigField("vocab_size", "vocab_size", 32128),
        ConfigField("n_buckets", "relative_attention_num_buckets", 32),
        ConfigField("max_distance", "relative_attention_max_distance", 128),
        activation("dense_act_fn", "relu"),
        ConfigField("gated", "is_gated_act", False),
        ConfigField("norm_eps", "layer_norm_epsilon", 1e-6),
        ConfigField("dropout", "dropout_rate", 0.1),
        ConfigField("tied", "tie_word_embeddings", True),
        ConfigField("scaled", "scale_decoder_outputs", None),
        ConfigField("padding", "pad_token_id", 0),
        ConfigField("decoder_start", "decoder_start_token_id", 0),
        ConfigField("end", "eos_token_id", 1, read=first),
    ),
    keys=keys,
    ignored_fields=frozenset("is_decoder classifier_dropout initializer_factor feed_forward_proj n_positions".split()),
    ignored_keys=lambda config: (r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
    upgrade_config=adjust,
    extra_fields=extras,
)
