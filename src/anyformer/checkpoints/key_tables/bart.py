"""BART: Marian's names, learned positions and a norm at the bottom; the bare model leaves out the prefix."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.checkpoints.key_table import Key, KeyTable, each_layer, strip_prefix, weight_and_bias, with_defaults
from anyformer.checkpoints.key_tables.marian import SIDES, SOURCE, WORDS, layer, numbers, words
from anyformer.recipes.bart import BARTConfig


def keys(config: BARTConfig) -> list[Key]:
    rows = words(config, config.head == "language")
    for side, n in (("encoder", config.n_layers), ("decoder", config.decoder_layers)):
        rows += [Key(f"{side}.inputs.positions.weight", f"model.{side}.embed_positions.weight")]
        rows += weight_and_bias(f"{side}.inputs.norm", f"model.{side}.layernorm_embedding")
        rows += each_layer(n, layer(side))
    if config.head == "language":
        rows += [Key("language.bias", "final_logits_bias", "reshape", (1, config.vocab_size))]
    return rows


rename = strip_prefix("model.")


def copies(config: BARTConfig) -> Mapping[str, str]:
    """With nothing tied, the class still has the shared table, and does not use it."""
    return {} if config.tied else {rename(config, "model.shared.weight"): rename(config, SOURCE)}


def ignored_keys(config: BARTConfig) -> tuple[str, ...]:
    others = [r"^lm_head\.", r"^final_logits_bias$"] if config.head == "base" else []
    return (r"^model\.shared\.weight$", r"version$", *others)


TABLE = KeyTable(
    family="bart",
    model_type="bart",
    architectures={
        "BartForConditionalGeneration": {"head": "language"},
        "BartModel": {"head": "base"},
    },
    fields=(
        *SIDES,
        *with_defaults(WORDS, vocab_size=50265, pad_token_id=1, decoder_start_token_id=2, eos_token_id=2),
    ),
    keys=keys,
    required_values={
        "normalize_before": (False,),
        "normalize_embedding": (True,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (False,),
        "extra_pos_embeddings": (2,),
    },
    ignored_fields=frozenset(
        "is_decoder num_hidden_layers classif_dropout classifier_dropout add_bias_logits"
        " force_bos_token_to_be_generated".split()
    ),
    aliases=((r"^(shared|encoder|decoder)\.", r"model.\1."),),
    ignored_keys=ignored_keys,
    extra_fields=numbers,
    duplicate_keys=copies,
    rename=rename,
)
