"""DistilBERT. Its norms have a fixed epsilon, and sinusoidal positions are a way of starting the table, not another."""

from __future__ import annotations

from anyformer.recipes.distilbert import DistilBERT
from anyformer.weights.table import LABELS, PROBLEM, Field, Key, Table, activation, bare, both, each_layer, named
from anyformer.weights.tables.bert import OLD_BUFFERS, SPELLINGS, classes, heads, inputs

_LAYER = {
    "self.query": "attention.q_lin",
    "self.key": "attention.k_lin",
    "self.value": "attention.v_lin",
    "self.out": "attention.out_lin",
    "self.norm": "sa_layer_norm",
    "feedforward.up": "ffn.lin1",
    "feedforward.down": "ffn.lin2",
    "feedforward.norm": "output_layer_norm",
}


def keys(config: DistilBERT) -> list[Key]:
    use = config.head
    also = ("vocab_projector.weight",) if config.tied and use == "masked" else ()
    rows = [
        *inputs("distilbert.embeddings", ("words", "positions"), also),
        *each_layer(config.n_layers, named("encoder.blocks.{i}", "distilbert.transformer.layer.{i}", _LAYER)),
    ]
    if use == "masked":
        rows += [*both("words.dense", "vocab_transform"), *both("words.norm", "vocab_layer_norm")]
        rows += [Key("words.bias", "vocab_projector.bias")]
        rows += [] if config.tied else [Key("words.words.weight", "vocab_projector.weight")]
    if use in ("classify", "choice"):
        rows += both(f"{use}.pool", "pre_classifier")
    return rows + heads(use)


def leftovers(config: DistilBERT) -> tuple[str, ...]:
    return (OLD_BUFFERS, *([] if config.head == "masked" else [r"^vocab_"]))


TABLE = Table(
    family="distilbert",
    model_type="distilbert",
    architectures=classes("DistilBert"),
    fields=(
        Field("n_layers", "n_layers", 6),
        Field("d_model", "dim", 768),
        Field("n_heads", "n_heads", 12),
        Field("d_hidden", "hidden_dim", 3072),
        Field("vocab_size", "vocab_size", 30522),
        Field("max_length", "max_position_embeddings", 512),
        activation("activation", "gelu"),
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
    rename=bare("distilbert."),
)
