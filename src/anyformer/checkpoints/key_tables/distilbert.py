"""DistilBERT. Its norms have a fixed epsilon, and sinusoidal positions are a way of starting the table, not another."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    LABELS,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    activation,
    each_layer,
    strip_prefix,
    weight_and_bias,
    weights_and_biases,
)
from anyformer.checkpoints.key_tables.bert import OLD_BUFFERS, SPELLINGS, classes, heads, inputs
from anyformer.recipes.distilbert import DistilBERTConfig

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


def keys(config: DistilBERTConfig) -> list[Key]:
    use = config.head
    also = ("vocab_projector.weight",) if config.tied and use == "masked" else ()
    rows = [
        *inputs("distilbert.embeddings", ("words", "positions"), also),
        *each_layer(
            config.n_layers, weights_and_biases("encoder.blocks.{i}", "distilbert.transformer.layer.{i}", _LAYER)
        ),
    ]
    if use == "masked":
        rows += [*weight_and_bias("words.dense", "vocab_transform"), *weight_and_bias("words.norm", "vocab_layer_norm")]
        rows += [Key("words.bias", "vocab_projector.bias")]
        rows += [] if config.tied else [Key("words.words.weight", "vocab_projector.weight")]
    if use in ("classify", "choice"):
        rows += weight_and_bias(f"{use}.pool", "pre_classifier")
    return rows + heads(use)


def ignored_keys(config: DistilBERTConfig) -> tuple[str, ...]:
    return (OLD_BUFFERS, *([] if config.head == "masked" else [r"^vocab_"]))


TABLE = KeyTable(
    family="distilbert",
    model_type="distilbert",
    architectures=classes("DistilBert"),
    fields=(
        ConfigField("n_layers", "n_layers", 6),
        ConfigField("d_model", "dim", 768),
        ConfigField("n_heads", "n_heads", 12),
        ConfigField("d_hidden", "hidden_dim", 3072),
        ConfigField("vocab_size", "vocab_size", 30522),
        ConfigField("max_length", "max_position_embeddings", 512),
        activation("activation", "gelu"),
        ConfigField("dropout", "dropout", 0.1),
        ConfigField("attention_dropout", "attention_dropout", 0.1),
        ConfigField("class_dropout", "seq_classif_dropout", 0.2),
        ConfigField("span_dropout", "qa_dropout", 0.1),
        ConfigField("padding", "pad_token_id", 0),
        ConfigField("tied", "tie_word_embeddings", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    ignored_fields=frozenset({"sinusoidal_pos_embds", "tie_weights_", "output_past"}),
    aliases=(*SPELLINGS, (r"^(embeddings|transformer)\.", r"distilbert.\1.")),
    ignored_keys=ignored_keys,
    rename=strip_prefix("distilbert."),
)
