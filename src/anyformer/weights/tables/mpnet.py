"""MPNet. Its buckets are 32 whatever the config says, so nothing else is taken."""

from __future__ import annotations

import re

from anyformer.recipes.mpnet import MPNet
from anyformer.weights.table import Field, Key, Table, both, each_layer
from anyformer.weights.tables.bert import FIELDS, SPELLINGS, inputs
from anyformer.weights.tables.roberta import head_keys, head_leftovers

_ROLES = {"query": "q", "key": "k", "value": "v", "out": "o"}


def _layer() -> list[Key]:
    block, theirs = "encoder.blocks.{i}", "mpnet.encoder.layer.{i}"
    rows = []
    for role, name in _ROLES.items():
        rows += both(f"{block}.self.{role}", f"{theirs}.attention.attn.{name}")
    return [
        *rows,
        *both(f"{block}.self.norm", f"{theirs}.attention.LayerNorm"),
        *both(f"{block}.feedforward.up", f"{theirs}.intermediate.dense"),
        *both(f"{block}.feedforward.down", f"{theirs}.output.dense"),
        *both(f"{block}.feedforward.norm", f"{theirs}.output.LayerNorm"),
    ]


def keys(config: MPNet) -> list[Key]:
    also = ("lm_head.decoder.weight",) if config.tied and config.head == "masked" else ()
    return [
        *inputs("mpnet.embeddings", ("words", "positions"), also),
        Key("encoder.positions.weight", "mpnet.encoder.relative_attention_bias.weight"),
        *each_layer(config.n_layers, _layer()),
        *head_keys(config, "mpnet"),
    ]


def rename(config: MPNet, name: str) -> str:
    return re.sub(r"^mpnet\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="mpnet",
    model_type="mpnet",
    architectures={
        "MPNetModel": {"head": "base"},
        "MPNetForMaskedLM": {"head": "masked"},
        "MPNetForSequenceClassification": {"head": "classify", "pooling": "first"},
        "MPNetForTokenClassification": {"head": "tag"},
        "MPNetForQuestionAnswering": {"head": "span"},
        "MPNetForMultipleChoice": {"head": "choice", "pooling": "first"},
    },
    fields=(*FIELDS, Field("vocab_size", "vocab_size", 30527), Field("padding", "pad_token_id", 1)),
    keys=keys,
    fixed={"relative_attention_num_buckets": (32,)},
    aliases=(*SPELLINGS, (r"^(embeddings|encoder|pooler)\.", r"mpnet.\1.")),
    leftovers=lambda config: head_leftovers(config, "mpnet"),
    rename=rename,
)
