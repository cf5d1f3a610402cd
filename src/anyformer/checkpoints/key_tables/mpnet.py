"""MPNet. Its buckets are 32 whatever the config says, so nothing else is taken."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ConfigField, KeyTable
from anyformer.checkpoints.key_tables.bert import FIELDS, SPELLINGS, body, classes, with_words
from anyformer.checkpoints.key_tables.roberta import WORDS, names
from anyformer.checkpoints.names import by_names, prefix_aliases

_LAYER = {
    "self.query": "attention.attn.q",
    "self.key": "attention.attn.k",
    "self.value": "attention.attn.v",
    "self.out": "attention.attn.o",
    "self.norm": "attention.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward.norm": "output.LayerNorm",
}


NAMES = {
    **names("mpnet", body("mpnet", _LAYER)),
    "encoder.positions": "mpnet.encoder.relative_attention_bias",
}

TABLE = KeyTable(
    family="mpnet",
    model_type="mpnet",
    architectures=classes("MPNet"),
    fields=(*FIELDS, ConfigField("vocab_size", "vocab_size", 30527), ConfigField("padding", "pad_token_id", 1)),
    **by_names(
        "mpnet", with_words(NAMES, WORDS), prefix="mpnet", aliases=(*SPELLINGS, *prefix_aliases("mpnet", NAMES))
    ),
    required_values={"relative_attention_num_buckets": (32,)},
)
