"""BART: Marian's names, learned positions and a norm at the bottom; the bare model leaves out the prefix."""

from __future__ import annotations

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.key_tables import marian
from anyformer.checkpoints.names import Names, by_names
from anyformer.recipes.bart import BARTConfig


def names(config: BARTConfig) -> Names:
    rows = marian.names(config)
    sides = ("encoder", "decoder")
    return {
        **rows,
        **{f"{side}.inputs.positions": f"model.{side}.embed_positions" for side in sides},
        **{f"{side}.inputs.norm": f"model.{side}.layernorm_embedding" for side in sides},
        "classify.pool": "classification_head.dense",
        "classify.classes": "classification_head.out_proj",
    }


TABLE = KeyTable(
    family="bart",
    model_type="bart",
    architectures={
        "BartForConditionalGeneration": {"head": "language"},
        "BartModel": {"head": "base"},
        "BartForSequenceClassification": {"head": "classify", "pooling": "end"},
    },
    fields=(
        *marian.SIDES,
        *with_defaults(marian.WORDS, vocab_size=50265, pad_token_id=1, decoder_start_token_id=2, eos_token_id=2),
        ConfigField("head_dropout", "classifier_dropout", 0.0, write=lambda rate: rate or 0.0),
        LABELS,
        PROBLEM,
    ),
    **by_names(
        "bart", names, prefix="model", ignored=(r"^model\.shared\.weight$", r"version$"), aliases=marian.PREFIXES
    ),
    required_values={
        "normalize_before": (False,),
        "normalize_embedding": (True,),
        "add_final_layer_norm": (False,),
        "static_position_embeddings": (False,),
        "extra_pos_embeddings": (2,),
    },
    ignored_fields=frozenset(
        "is_decoder num_hidden_layers classif_dropout add_bias_logits force_bos_token_to_be_generated".split()
    ),
    extra_fields=marian.numbers,
    duplicate_keys=marian.copies,
)
