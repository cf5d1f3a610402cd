"""BERT. Old files spell the norms gamma and beta; files of the bare encoder leave out the prefix."""

from __future__ import annotations

import re

from anyformer.recipes.bert import BERT
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

_POOLED = {"base": "embed", "pretraining": "pair", "classify": "classify", "choice": "choice"}


def _layer(config: BERT) -> list[Key]:
    block, theirs = "encoder.blocks.{i}", "bert.encoder.layer.{i}"
    parts = {"self": "attention", **({"cross": "crossattention"} if config.cross_attention else {})}
    rows = []
    for ours, name in parts.items():
        for role in ("query", "key", "value"):
            rows += both(f"{block}.{ours}.{role}", f"{theirs}.{name}.self.{role}")
        rows += both(f"{block}.{ours}.out", f"{theirs}.{name}.output.dense")
        rows += both(f"{block}.{ours}.norm", f"{theirs}.{name}.output.LayerNorm")
    return [
        *rows,
        *both(f"{block}.feedforward.up", f"{theirs}.intermediate.dense"),
        *both(f"{block}.feedforward.down", f"{theirs}.output.dense"),
        *both(f"{block}.feedforward.norm", f"{theirs}.output.LayerNorm"),
    ]


def _words(config: BERT) -> list[Key]:
    transform, scores = "cls.predictions.transform", "cls.predictions.decoder"
    head = [*both("words.dense", f"{transform}.dense"), *both("words.norm", f"{transform}.LayerNorm")]
    if config.tied:
        return [*head, Key("words.bias", "cls.predictions.bias", also=(f"{scores}.bias",))]
    return [
        *head,
        Key("words.words.weight", f"{scores}.weight"),
        Key("words.bias", f"{scores}.bias", also=("cls.predictions.bias",)),
    ]


def keys(config: BERT) -> list[Key]:
    embeddings = "bert.embeddings"
    tied_head = config.tied and config.head in ("pretraining", "masked")
    rows = [
        Key(
            "encoder.inputs.words.weight",
            f"{embeddings}.word_embeddings.weight",
            also=("cls.predictions.decoder.weight",) if tied_head else (),
        ),
        Key("encoder.inputs.positions.weight", f"{embeddings}.position_embeddings.weight"),
        Key("encoder.inputs.types.weight", f"{embeddings}.token_type_embeddings.weight"),
        *both("encoder.inputs.norm", f"{embeddings}.LayerNorm"),
        *each_layer(config.n_layers, _layer(config)),
    ]
    if config.head in _POOLED:
        rows += both(f"{_POOLED[config.head]}.pool", "bert.pooler.dense")
    if config.head in ("pretraining", "masked"):
        rows += _words(config)
    if config.head == "pretraining":
        rows += both("pair.classes", "cls.seq_relationship")
    if config.head in ("classify", "choice", "tag"):
        rows += both(f"{config.head}.classes", "classifier")
    if config.head == "span":
        rows += both("span.ends", "qa_outputs")
    return rows


def leftovers(config: BERT) -> tuple[str, ...]:
    """The pooler and the heads of pre-training, where this architecture has none of its own; old buffers."""
    heads = [r"embeddings\.(position_ids|token_type_ids)$"]
    heads += [] if config.head in _POOLED else [r"^bert\.pooler\."]
    heads += [r"^cls\.seq_relationship\."] if config.head != "pretraining" else []
    heads += [r"^cls\.predictions\."] if config.head not in ("pretraining", "masked") else []
    heads += [r"^cls\.predictions\.bias$"]
    return tuple(heads)


def rename(config: BERT, name: str) -> str:
    return re.sub(r"^bert\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="bert",
    model_type="bert",
    architectures={
        "BertModel": {"head": "base"},
        "BertForPreTraining": {"head": "pretraining"},
        "BertForMaskedLM": {"head": "masked"},
        "BertForSequenceClassification": {"head": "classify"},
        "BertForTokenClassification": {"head": "tag"},
        "BertForQuestionAnswering": {"head": "span"},
        "BertForMultipleChoice": {"head": "choice"},
    },
    fields=(
        Field("n_layers", "num_hidden_layers", 12),
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_hidden", "intermediate_size", 3072),
        Field("vocab_size", "vocab_size", 30522),
        Field("max_length", "max_position_embeddings", 512),
        Field("n_types", "type_vocab_size", 2),
        Field("activation", "hidden_act", "gelu", read_activation, write_activation),
        Field("norm_eps", "layer_norm_eps", 1e-12),
        Field("dropout", "hidden_dropout_prob", 0.1),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.1),
        Field("head_dropout", "classifier_dropout", None),
        Field("padding", "pad_token_id", 0),
        Field("causal", "is_decoder", False),
        Field("cross_attention", "add_cross_attention", False),
        Field("tied", "tie_word_embeddings", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    fixed={"position_embedding_type": ("absolute",)},
    inert=frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head"
        " pooler_type".split()
    ),
    aliases=(
        (r"LayerNorm\.gamma$", "LayerNorm.weight"),
        (r"LayerNorm\.beta$", "LayerNorm.bias"),
        (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),
    ),
    leftovers=leftovers,
    rename=rename,
)
