"""BART: Marian's names, learned positions and a norm at the bottom; the bare model leaves out the prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from anyformer.recipes.bart import BART
from anyformer.weights.table import Field, Key, Table, both, each_layer, read_activation, write_activation
from anyformer.weights.tables.marian import SOURCE, first, layer, words


def keys(config: BART) -> list[Key]:
    rows = words(config, config.head == "language")
    for side, n in (("encoder", config.n_layers), ("decoder", config.decoder_layers)):
        rows += [Key(f"{side}.inputs.positions.weight", f"model.{side}.embed_positions.weight")]
        rows += both(f"{side}.inputs.norm", f"model.{side}.layernorm_embedding")
        rows += each_layer(n, layer(side))
    if config.head == "language":
        bias = Key("language.bias", "final_logits_bias", "reshape", (1, config.vocab_size))
        rows += [bias]
    return rows


def copies(config: BART) -> Mapping[str, str]:
    """With nothing tied, the class still has the shared table, and does not use it."""
    return {} if config.tied else {rename(config, "model.shared.weight"): rename(config, SOURCE)}


def rename(config: BART, name: str) -> str:
    return re.sub(r"^model\.", "", name) if config.head == "base" else name


def leftovers(config: BART) -> tuple[str, ...]:
    others = [r"^lm_head\.", r"^final_logits_bias$"] if config.head == "base" else []
    return (r"^model\.shared\.weight$", r"version$", *others)


def extras(config: BART, today: dict[str, Any]) -> dict[str, Any]:
    """Where our decoder says "as the encoder", theirs wants the number."""
    return {
        "decoder_layers": config.decoder_layers,
        "decoder_attention_heads": config.decoder_heads,
        "decoder_ffn_dim": config.decoder_hidden,
    }


TABLE = Table(
    family="bart",
    model_type="bart",
    architectures={
        "BartForConditionalGeneration": {"head": "language"},
        "BartModel": {"head": "base"},
    },
    fields=(
        Field("n_layers", "encoder_layers", 12),
        Field("n_decoder_layers", "decoder_layers", 12),
        Field("d_model", "d_model", 1024),
        Field("n_heads", "encoder_attention_heads", 16),
        Field("n_decoder_heads", "decoder_attention_heads", 16),
        Field("d_hidden", "encoder_ffn_dim", 4096),
        Field("d_decoder_hidden", "decoder_ffn_dim", 4096),
        Field("vocab_size", "vocab_size", 50265),
        Field("max_length", "max_position_embeddings", 1024),
        Field("activation", "activation_function", "gelu", read_activation, write_activation),
        Field("dropout", "dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("hidden_dropout", "activation_dropout", 0.0),
        Field("layer_drop", "encoder_layerdrop", 0.0),
        Field("decoder_layer_drop", "decoder_layerdrop", 0.0),
        Field("scale_embedding", "scale_embedding", False),
        Field("tied", "tie_word_embeddings", True),
        Field("init_std", "init_std", 0.02),
        Field("padding", "pad_token_id", 1),
        Field("decoder_start", "decoder_start_token_id", 2),
        Field("end", "eos_token_id", 2, read=first),
    ),
    keys=keys,
    fixed={
        "normalize_before": (False,),
        "normalize_embedding": (True,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (False,),
        "extra_pos_embeddings": (2,),
    },
    inert=frozenset(
        "is_decoder num_hidden_layers classif_dropout classifier_dropout add_bias_logits"
        " force_bos_token_to_be_generated".split()
    ),
    aliases=((r"^(shared|encoder|decoder)\.", r"model.\1."),),
    leftovers=leftovers,
    extras=extras,
    copies=copies,
    rename=rename,
)
