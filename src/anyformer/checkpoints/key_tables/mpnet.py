"""MPNet. Its buckets are 32 whatever the config says, so nothing else is taken."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, each_layer, strip_prefix, weights_and_biases
from anyformer.checkpoints.key_tables.bert import FIELDS, SPELLINGS, classes, inputs
from anyformer.checkpoints.key_tables.roberta import head_keys, head_leftovers
from anyformer.recipes.mpnet import MPNetConfig

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


def keys(config: MPNetConfig) -> list[Key]:
    also = ("lm_head.decoder.weight",) if config.tied and config.head == "masked" else ()
    return [
        *inputs("mpnet.embeddings", ("words", "positions"), also),
        Key("encoder.positions.weight", "mpnet.encoder.relative_attention_bias.weight"),
        *each_layer(config.n_layers, weights_and_biases("encoder.blocks.{i}", "mpnet.encoder.layer.{i}", _LAYER)),
        *head_keys(config, "mpnet"),
    ]


TABLE = KeyTable(
    family="mpnet",
    model_type="mpnet",
    architectures=classes("MPNet"),
    fields=(*FIELDS, ConfigField("vocab_size", "vocab_size", 30527), ConfigField("padding", "pad_token_id", 1)),
    keys=keys,
    required_values={"relative_attention_num_buckets": (32,)},
    aliases=(*SPELLINGS, (r"^(embeddings|encoder|pooler)\.", r"mpnet.\1.")),
    ignored_keys=lambda config: head_leftovers(config, "mpnet"),
    rename=strip_prefix("mpnet."),
)
