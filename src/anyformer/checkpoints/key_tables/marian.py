"""Marian, the Hugging Face form of the original Transformer. Old files also hold the sinusoids and every tied copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, activation, first, strip_prefix
from anyformer.checkpoints.names import Names, absent, batch_of_one, by_names, under
from anyformer.recipes.transformer import OriginalTransformerConfig

SOURCE, TARGET, SHARED = "model.encoder.embed_tokens", "model.decoder.embed_tokens", "model.shared"
_ROLES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
PREFIXES = ((r"^(shared|encoder|decoder)\.", r"model.\1."),)


def layers(side: str) -> dict[str, Any]:
    """The names of a stack's layers, which BART, Whisper, TrOCR and DETR spell in the same way."""
    names: dict[str, str] = {"feedforward.up": "fc1", "feedforward.down": "fc2", "feedforward.norm": "final_layer_norm"}
    for ours, theirs in (("self", "self_attn"), ("cross", "encoder_attn")):
        names |= {f"{ours}.{role}": f"{theirs}.{name}" for role, name in _ROLES.items()}
        names[f"{ours}.norm"] = f"{theirs}_layer_norm"
    return under(f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}", names)


def words(config: OriginalTransformerConfig) -> dict[str, Any]:
    if config.shared_words:
        return {"encoder.inputs.words": (SHARED, SOURCE, TARGET), "language.words": "lm_head"}
    # transformers makes one table of both where it resizes them
    return {
        "encoder.inputs.words": (SOURCE, SHARED),
        "decoder.inputs.words": (TARGET, SHARED),
        "language.words": "lm_head",
    }


def names(config: OriginalTransformerConfig) -> Names:
    positions = {f"{side}.inputs.positions": f"model.{side}.embed_positions" for side in ("encoder", "decoder")}
    leaves_out = config.head != "base"  # a formula gives them, and only the bare class writes them
    return {
        **words(config),
        **{ours: absent(theirs) if leaves_out else theirs for ours, theirs in positions.items()},
        **layers("encoder"),
        **layers("decoder"),
        "language.bias": batch_of_one("final_logits_bias"),
    }


def copies(config: OriginalTransformerConfig) -> Mapping[str, str]:
    """With nothing tied, the class still has the shared table, and does not use it."""
    if not config.shared or config.tied:
        return {}
    return {rename(config, f"{SHARED}.weight"): rename(config, f"{SOURCE}.weight")}


rename = strip_prefix("model.")


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
    architectures={"MarianMTModel": {"head": "language"}, "MarianModel": {"head": "base"}},
    fields=(
        *SIDES,
        *WORDS,
        ConfigField("target_vocab_size", "decoder_vocab_size", None),
        ConfigField("shared", "share_encoder_decoder_embeddings", True),
    ),
    **by_names("transformer", names, prefix="model", ignored=(r"^model\.shared\.weight$",), aliases=PREFIXES),
    required_values={
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (True,),
        "extra_pos_embeddings": (0,),
    },
    ignored_fields=frozenset("is_decoder num_hidden_layers classif_dropout classifier_dropout add_bias_logits".split()),
    upgrade_config=adjust,
    extra_fields=lambda config, today: {**numbers(config, today), "decoder_vocab_size": config.target_words},
    duplicate_keys=copies,
)
