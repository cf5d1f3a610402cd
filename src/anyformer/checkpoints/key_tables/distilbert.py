"""DistilBERT. Its norms have a fixed epsilon, and sinusoidal positions are a way of starting the table, not another."""

from __future__ import annotations

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, activation
from anyformer.checkpoints.key_tables.bert import SPELLINGS, body, classes
from anyformer.checkpoints.names import by_names

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


NAMES = {
    **body("distilbert", _LAYER, "transformer.layer"),
    "words.dense": "vocab_transform",
    "words.norm": "vocab_layer_norm",
    "words.words": "vocab_projector",
    "words.bias": "vocab_projector.bias",
    "*.pool": "pre_classifier",
}

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
    **by_names("distilbert", NAMES, prefix="distilbert", aliases=SPELLINGS),
    ignored_fields=frozenset({"sinusoidal_pos_embds", "tie_weights_", "output_past"}),
)
