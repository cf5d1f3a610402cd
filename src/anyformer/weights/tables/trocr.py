"""TrOCR's decoder: BART's names, with the sides' prefix and another name for the output."""

from __future__ import annotations

from anyformer.recipes.trocr import TrOCR
from anyformer.weights.table import Field, Key, Table, activation, both, each_layer, spoken
from anyformer.weights.tables.marian import TARGET, layer


def keys(config: TrOCR) -> list[Key]:
    rows = spoken(config.tied, TARGET, "output_projection.weight")
    if config.learned_positions:
        rows += [Key("decoder.inputs.positions.weight", "model.decoder.embed_positions.weight")]
    if config.norm_embedding:
        rows += both("decoder.inputs.norm", "model.decoder.layernorm_embedding")
    return rows + each_layer(config.n_layers, layer("decoder"))


TABLE = Table(
    family="trocr",
    model_type="trocr",
    architectures={"TrOCRForCausalLM": {}},
    fields=(
        Field("n_layers", "decoder_layers", 12),
        Field("d_model", "d_model", 1024),
        Field("n_heads", "decoder_attention_heads", 16),
        Field("d_hidden", "decoder_ffn_dim", 4096),
        Field("d_context", "cross_attention_hidden_size", None),
        Field("vocab_size", "vocab_size", 50265),
        Field("max_length", "max_position_embeddings", 512),
        activation("activation_function", "gelu"),
        Field("dropout", "dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("hidden_dropout", "activation_dropout", 0.0),
        Field("layer_drop", "decoder_layerdrop", 0.0),
        Field("scale_embedding", "scale_embedding", False),
        Field("learned_positions", "use_learned_position_embeddings", True),
        Field("norm_embedding", "layernorm_embedding", True),
        Field("tied", "tie_word_embeddings", True),
        Field("init_std", "init_std", 0.02),
        Field("padding", "pad_token_id", 1),
    ),
    keys=keys,
    fixed={"is_decoder": (True,)},
    inert=frozenset({"add_cross_attention", "classifier_dropout", "encoder_hidden_size"}),
    leftovers=lambda config: (r"^output_projection\.weight$", r"embed_positions\._float_tensor$", r"version$"),
    extras=lambda config, today: {"is_decoder": True},
)
