"""BERT. Old files spell the norms gamma and beta; files of the bare encoder leave out the prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable

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

# Settings that BERT's kin spell alike.
FIELDS = (
    Field("n_layers", "num_hidden_layers", 12),
    Field("d_model", "hidden_size", 768),
    Field("n_heads", "num_attention_heads", 12),
    Field("d_hidden", "intermediate_size", 3072),
    Field("max_length", "max_position_embeddings", 512),
    Field("activation", "hidden_act", "gelu", read_activation, write_activation),
    Field("norm_eps", "layer_norm_eps", 1e-12),
    Field("dropout", "hidden_dropout_prob", 0.1),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.1),
    Field("tied", "tie_word_embeddings", True),
    LABELS,
    PROBLEM,
)
TYPES = Field("n_types", "type_vocab_size", 2)
DECODER = (Field("causal", "is_decoder", False), Field("cross_attention", "add_cross_attention", False))
# Files of the bare encoder leave out the prefix; old ones spell the norms gamma and beta.
SPELLINGS = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
OLD_BUFFERS = r"embeddings\.(position_ids|token_type_ids)$"


def layers(n: int, theirs: str, cross_attention: bool) -> list[Key]:
    block = "encoder.blocks.{i}"
    parts = {"self": "attention", **({"cross": "crossattention"} if cross_attention else {})}
    rows = []
    for ours, name in parts.items():
        for role in ("query", "key", "value"):
            rows += both(f"{block}.{ours}.{role}", f"{theirs}.{name}.self.{role}")
        rows += both(f"{block}.{ours}.out", f"{theirs}.{name}.output.dense")
        rows += both(f"{block}.{ours}.norm", f"{theirs}.{name}.output.LayerNorm")
    rows += both(f"{block}.feedforward.up", f"{theirs}.intermediate.dense")
    rows += both(f"{block}.feedforward.down", f"{theirs}.output.dense")
    rows += both(f"{block}.feedforward.norm", f"{theirs}.output.LayerNorm")
    return each_layer(n, rows)


def inputs(theirs: str, names: Iterable[str], also: tuple[str, ...] = ()) -> list[Key]:
    """The tables of words, positions and types, and the norm of their sum; `also`: the output's copy of the words."""
    spelled = {"words": "word", "positions": "position", "types": "token_type"}
    rows = [
        Key(
            f"encoder.inputs.{name}.weight",
            f"{theirs}.{spelled[name]}_embeddings.weight",
            also=also if name == "words" else (),
        )
        for name in names
    ]
    return [*rows, *both("encoder.inputs.norm", f"{theirs}.LayerNorm")]


def words(tied: bool, dense: str, norm: str, bias: str, scores: str) -> list[Key]:
    """The head of masked words; the output's bias has two names, of which the untied model uses the second."""
    head = [*both("words.dense", dense), *both("words.norm", norm)]
    if tied:
        return [*head, Key("words.bias", bias, also=(f"{scores}.bias",))]
    return [*head, Key("words.words.weight", f"{scores}.weight"), Key("words.bias", f"{scores}.bias", also=(bias,))]


def keys(config: BERT) -> list[Key]:
    scores, transform = "cls.predictions.decoder", "cls.predictions.transform"
    speaks = config.head in ("pretraining", "masked")
    also = (f"{scores}.weight",) if config.tied and speaks else ()
    rows = [
        *inputs("bert.embeddings", ("words", "positions", "types"), also),
        *layers(config.n_layers, "bert.encoder.layer.{i}", config.cross_attention),
    ]
    if config.head in _POOLED:
        rows += both(f"{_POOLED[config.head]}.pool", "bert.pooler.dense")
    if speaks:
        rows += words(config.tied, f"{transform}.dense", f"{transform}.LayerNorm", "cls.predictions.bias", scores)
    if config.head == "pretraining":
        rows += both("pair.classes", "cls.seq_relationship")
    if config.head in ("classify", "choice", "tag"):
        rows += both(f"{config.head}.classes", "classifier")
    if config.head == "span":
        rows += both("span.ends", "qa_outputs")
    return rows


def leftovers(config: BERT) -> tuple[str, ...]:
    """The pooler and the heads of pre-training, where this architecture has none of its own; old buffers."""
    heads = [OLD_BUFFERS]
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
        "BertForSequenceClassification": {"head": "classify", "pooling": "first"},
        "BertForTokenClassification": {"head": "tag"},
        "BertForQuestionAnswering": {"head": "span"},
        "BertForMultipleChoice": {"head": "choice", "pooling": "first"},
    },
    fields=(
        *FIELDS,
        *DECODER,
        TYPES,
        Field("vocab_size", "vocab_size", 30522),
        Field("head_dropout", "classifier_dropout", None),
        Field("padding", "pad_token_id", 0),
    ),
    keys=keys,
    fixed={"position_embedding_type": ("absolute",)},
    inert=frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head"
        " pooler_type".split()
    ),
    aliases=(
        *SPELLINGS,
        (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),
    ),
    leftovers=leftovers,
    rename=rename,
)
