"""Marian, the Hugging Face form of the original Transformer. Old files also hold the sinusoids and every tied copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.checkpoints.key_table import (
    ConfigField,
    Key,
    KeyTable,
    activation,
    each_layer,
    first,
    weights_and_biases,
)
from anyformer.recipes.transformer import OriginalTransformerConfig

SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def layer(side: str) -> list[Key]:
    """The rows of one layer, which BART and DETR spell in the same way."""
    block, theirs = f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}"
    parts = {"self": "self_attn", **({"cross": "encoder_attn"} if side == "decoder" else {})}
    rows = weights_and_biases(f"{block}.feedforward", theirs, {"up": "fc1", "down": "fc2", "norm": "final_layer_norm"})
    for ours, name in parts.items():
        rows += weights_and_biases(f"{block}.{ours}", f"{theirs}.{name}", _ATTENTION)
        rows += weights_and_biases(f"{block}.{ours}", theirs, {"norm": f"{name}_layer_norm"})
    return rows


def words(config: OriginalTransformerConfig, speaks: bool = True) -> list[Key]:
    """`speaks`: there is an output."""
    source, target = "encoder.inputs.words.weight", "decoder.inputs.words.weight"
    if config.tied and config.shared:
        output = ("lm_head.weight",) if speaks else ()
        return [Key(source, "model.shared.weight", also=(SOURCE, TARGET, *output))]
    if config.tied:
        return [Key(source, SOURCE), Key(target, TARGET, also=("lm_head.weight",))]
    output_rows = [Key("language.words.weight", "lm_head.weight")] if speaks else []
    shared = ("model.shared.weight",)  # transformers makes one table of both where it resizes them
    return [Key(source, SOURCE, also=shared), Key(target, TARGET, also=shared), *output_rows]


def keys(config: OriginalTransformerConfig) -> list[Key]:
    return [
        *words(config),
        Key("encoder.inputs.positions.weight", "model.encoder.embed_positions.weight", optional=True),
        Key("decoder.inputs.positions.weight", "model.decoder.embed_positions.weight", optional=True),
        *each_layer(config.n_layers, layer("encoder")),
        *each_layer(config.decoder_layers, layer("decoder")),
        Key("language.bias", "final_logits_bias", "reshape", (1, config.target_words)),
    ]


def copies(config: OriginalTransformerConfig) -> Mapping[str, str]:
    """With nothing tied, the class still has the shared table, and does not use it."""
    return {"model.shared.weight": SOURCE} if config.shared and not config.tied else {}


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Old configs leave decoder_start_token_id to the padding id."""
    pad = config.get("pad_token_id", 58100)
    return {**config, "decoder_start_token_id": config.get("decoder_start_token_id", pad)}


def numbers(config: OriginalTransformerConfig, today: dict[str, Any]) -> dict[str, Any]:
    """Where our decoder says "as the encoder", theirs wants the number."""
    return {
        "decoder_layers": config.decoder_layers,
        "decoder_attention_heads": config.decoder_heads,
        "decoder_ffn_dim": config.decoder_hidden,
    }


# What the kin of the original Transformer say of their two sides.
SIDES = (
    ConfigField("n_layers", "encoder_layers", 12),
    ConfigField("n_decoder_layers", "decoder_layers", 12),
    ConfigField("d_model", "d_model", 1024),
    ConfigField("n_heads", "encoder_attention_heads", 16),
    ConfigField("n_decoder_heads", "decoder_attention_heads", 16),
    ConfigField("d_hidden", "encoder_ffn_dim", 4096),
    ConfigField("d_decoder_hidden", "decoder_ffn_dim", 4096),
    activation("activation_function", "gelu"),
    ConfigField("dropout", "dropout", 0.1),
    ConfigField("attention_dropout", "attention_dropout", 0.0),
    ConfigField("hidden_dropout", "activation_dropout", 0.0),
)
# And of their words.
WORDS = (
    ConfigField("vocab_size", "vocab_size", 58101),
    ConfigField("max_length", "max_position_embeddings", 1024),
    ConfigField("layer_drop", "encoder_layerdrop", 0.0),
    ConfigField("decoder_layer_drop", "decoder_layerdrop", 0.0),
    ConfigField("scale_embedding", "scale_embedding", False),
    ConfigField("tied", "tie_word_embeddings", True),
    ConfigField("init_std", "init_std", 0.02),
    ConfigField("padding", "pad_token_id", 58100),
    ConfigField("decoder_start", "decoder_start_token_id", 58100),
    ConfigField("end", "eos_token_id", 0, read=first),
)

TABLE = KeyTable(
    family="transformer",
    model_type="marian",
    architectures={"MarianMTModel": {}},
    fields=(
        *SIDES,
        *WORDS,
        ConfigField("target_vocab_size", "decoder_vocab_size", None),
        ConfigField("shared", "share_encoder_decoder_embeddings", True),
    ),
    keys=keys,
    required_values={
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,),
        "extra_pos_embeddings": (0,),
    },
    ignored_fields=frozenset("is_decoder num_hidden_layers classif_dropout classifier_dropout add_bias_logits".split()),
    ignored_keys=lambda config: (r"^model\.shared\.weight$",),
    upgrade_config=adjust,
    extra_fields=lambda config, today: {**numbers(config, today), "decoder_vocab_size": config.target_words},
    duplicate_keys=copies,
)
