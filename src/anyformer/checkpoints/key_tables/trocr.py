"""TrOCR's decoder: BART's names, with the sides' prefix and another name for the output."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, activation
from anyformer.checkpoints.key_tables.marian import TARGET, layers
from anyformer.checkpoints.names import Names, absent, by_names
from anyformer.errors import ConfigError
from anyformer.recipes.trocr import TrOCRConfig


def names(config: TrOCRConfig) -> Names:
    positions = "model.decoder.embed_positions"
    return {
        "decoder.inputs.words": TARGET,
        "decoder.inputs.positions": positions if config.positions == "learned" else absent(positions),
        "decoder.inputs.norm": "model.decoder.layernorm_embedding",
        **layers("decoder"),
        "language.words": "output_projection",
    }


_UNUSED = (r"^output_projection\.weight$", r"embed_positions\._float_tensor$", r"version$")


def _read_positions(learned: Any) -> str:
    return "learned" if learned else "sinusoidal"


def _write_positions(positions: str) -> bool:
    if positions not in ("learned", "sinusoidal"):
        raise ConfigError(f'positions is "{positions}"; Hugging Face\'s TrOCR has "learned" and "sinusoidal" only.')
    return positions == "learned"


TABLE = KeyTable(
    family="trocr",
    model_type="trocr",
    architectures={"TrOCRForCausalLM": {}},
    fields=(
        ConfigField("n_layers", "decoder_layers", 12),
        ConfigField("d_model", "d_model", 1024),
        ConfigField("n_heads", "decoder_attention_heads", 16),
        ConfigField("d_hidden", "decoder_ffn_dim", 4096),
        ConfigField("d_context", "cross_attention_hidden_size", None),
        ConfigField("vocab_size", "vocab_size", 50265),
        ConfigField("max_length", "max_position_embeddings", 512),
        activation("activation_function", "gelu"),
        ConfigField("dropout", "dropout", 0.1),
        ConfigField("attention_dropout", "attention_dropout", 0.0),
        ConfigField("hidden_dropout", "activation_dropout", 0.0),
        ConfigField("layer_drop", "decoder_layerdrop", 0.0),
        ConfigField("scale_embedding", "scale_embedding", False),
        ConfigField("positions", "use_learned_position_embeddings", True, _read_positions, _write_positions),
        ConfigField("embedding_norm", "layernorm_embedding", True),
        ConfigField("tied", "tie_word_embeddings", True),
        ConfigField("init_std", "init_std", 0.02),
        ConfigField("padding", "pad_token_id", 1),
    ),
    **by_names("trocr", names, ignored=_UNUSED),
    required_values={"is_decoder": (True,)},
    ignored_fields=frozenset({"add_cross_attention", "classifier_dropout", "encoder_hidden_size"}),
    extra_fields=lambda config, today: {"is_decoder": True},
)
