"""T5, 1.0 and 1.1. The first layer of a stack holds the distances for all of them.

Since version 5 transformers says of every T5 that its output is tied, and whether it is scaled in a field of its own;
older configs say the one by the other. Where the output is not scaled it may be a matrix of its own, and where a file
has none it is the word table's copy.
"""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, activation, first, write_activation
from anyformer.checkpoints.names import Names, by_names, under
from anyformer.errors import ConfigError
from anyformer.recipes.t5 import T5Config

_COPIES = ("encoder.embed_tokens", "decoder.embed_tokens")


def _layer(side: str) -> dict[str, Any]:
    names: dict[str, str] = {}
    parts = {"self": "SelfAttention", **({"cross": "EncDecAttention"} if side == "decoder" else {})}
    for i, (ours, theirs) in enumerate(parts.items()):
        names |= {f"{ours}.{role}": f"{i}.{theirs}.{role[0]}" for role in ("query", "key", "value", "out")}
        names[f"{ours}.norm"] = f"{i}.layer_norm"
    dense = f"{len(parts)}.DenseReluDense"
    names |= {"feedforward.gate": f"{dense}.wi_0", "feedforward.down": f"{dense}.wo"}
    names["feedforward.norm"] = f"{len(parts)}.layer_norm"
    return {
        f"{side}.positions": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{side}.final_norm": f"{side}.final_layer_norm",
        **under(f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer", names),
    }


def names(config: T5Config) -> Names:
    up = "wi_1" if config.gated else "wi"
    dense = {side: f"{side}.block.{{i}}.layer.{i}.DenseReluDense" for side, i in (("encoder", 1), ("decoder", 2))}
    return {
        "encoder.inputs.words": ("shared", *_COPIES),
        **_layer("encoder"),
        **_layer("decoder"),
        **{f"{side}.blocks.{{i}}.feedforward.up": f"{theirs}.{up}" for side, theirs in dense.items()},
        "language.words": ("lm_head", "shared", *_COPIES),
        "classify.pool": "classification_head.dense",
        "classify.classes": "classification_head.out_proj",
    }


def rename(config: T5Config, name: str) -> str:
    """The classifier has all else in one part."""
    inside = config.head == "classify" and not name.startswith("classification_head.")
    return f"transformer.{name}" if inside else name


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
    architectures={
        "T5ForConditionalGeneration": {"head": "language"},
        "T5Model": {"head": "base"},
        "T5EncoderModel": {"head": "encoder"},
        "T5ForSequenceClassification": {"head": "classify", "pooling": "end"},
    },
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
        ConfigField("head_dropout", "classifier_dropout", 0.0, write=lambda rate: rate or 0.0),
        LABELS,
        PROBLEM,
    ),
    **by_names(
        "t5",
        names,
        ignored=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
        aliases=((r"^transformer\.", ""),),
    ),
    rename=rename,
    ignored_fields=frozenset("is_decoder initializer_factor feed_forward_proj n_positions".split()),
    upgrade_config=adjust,
    extra_fields=extras,
)
