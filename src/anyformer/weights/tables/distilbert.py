"""DistilBERT. Its norms have a fixed epsilon, and sinusoidal positions are a way of starting the table, not another."""

from __future__ import annotations

import re

from anyformer.recipes.distilbert import DistilBERT
from anyformer.weights.table import (
    LABELS,
    PROBLEM,
    Field,
    Key,
    Table,
    both,
    each_layer,
    read_activation,
    write_activation,
)
from anyformer.weights.tables.bert import OLD_BUFFERS, SPELLINGS, inputs

_ROLES = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "out": "out_lin"}


def _layer() -> list[Key]:
    block, theirs = "encoder.blocks.{i}", "distilbert.transformer.layer.{i}"
    rows = []
    for role, name in _ROLES.items():
        rows += both(f"{block}.self.{role}", f"{theirs}.attention.{name}")
    return [
        *rows,
        *both(f"{block}.self.norm", f"{theirs}.sa_layer_norm"),
        *both(f"{block}.feedforward.up", f"{theirs}.ffn.lin1"),
        *both(f"{block}.feedforward.down", f"{theirs}.ffn.lin2"),
        *both(f"{block}.feedforward.norm", f"{theirs}.output_layer_norm"),
    ]


def keys(config: DistilBERT) -> list[Key]:
    use = config.head
    also = ("vocab_projector.weight",) if config.tied and use == "masked" else ()
    rows = [
        *inputs("distilbert.embeddings", ("words", "positions"), also),
        *each_layer(config.n_layers, _layer()),
    ]
    if use == "masked":
        rows += [*both("words.dense", "vocab_transform"), *both("words.norm", "vocab_layer_norm")]
        rows += [Key("words.bias", "vocab_projector.bias")]
        rows += [] if config.tied else [Key("words.words.weight", "vocab_projector.weight")]
    if use in ("classify", "choice"):
        rows += both(f"{use}.pool", "pre_classifier")
    if use in ("classify", "choice", "tag"):
        rows += both(f"{use}.classes", "classifier")
    return rows + (both("span.ends", "qa_outputs") if use == "span" else [])


def leftovers(config: DistilBERT) -> tuple[str, ...]:
    return (OLD_BUFFERS, *([] if config.head == "masked" else [r"^vocab_"]))


def rename(config: DistilBERT, name: str) -> str:
    return re.sub(r"^distilbert\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="distilbert",
    model_type="distilbert",
    architectures={
        "DistilBertModel": {"head": "base"},
        "DistilBertForMaskedLM": {"head": "masked"},
        "DistilBertForSequenceClassification": {"head": "classify", "pooling": "first"},
        "DistilBertForTokenClassification": {"head": "tag"},
        "DistilBertForQuestionAnswering": {"head": "span"},
        "DistilBertForMultipleChoice": {"head": "choice", "pooling": "first"},
    },
    fields=(
        Field("n_layers", "n_layers", 6),
        Field("d_model", "dim", 768),
        Field("n_heads", "n_heads", 12),
        Field("d_hidden", "hidden_dim", 3072),
        Field("vocab_size", "vocab_size", 30522),
        Field("max_length", "max_position_embeddings", 512),
        Field("activation", "activation", "gelu", read_activation, write_activation),
        Field("dropout", "dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.1),
        Field("class_dropout", "seq_classif_dropout", 0.2),
        Field("span_dropout", "qa_dropout", 0.1),
        Field("padding", "pad_token_id", 0),
        Field("tied", "tie_word_embeddings", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    inert=frozenset({"sinusoidal_pos_embds", "tie_weights_", "output_past"}),
    aliases=(*SPELLINGS, (r"^(embeddings|transformer)\.", r"distilbert.\1.")),
    leftovers=leftovers,
    rename=rename,
)
