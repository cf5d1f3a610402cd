"""GPT-NeoX and Pythia. Queries, keys and values lie head by head in one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, activation, decoder_classes
from anyformer.checkpoints.key_tables.llama import read_end, write_end
from anyformer.checkpoints.key_tables.rope import gather, read_rope, write_rope
from anyformer.checkpoints.names import Name, Names, by_names, under
from anyformer.core.rope import RopeConfig

_gather = gather("rotary_emb_base", "rotary_pct")


def _write_rope(ropes: tuple[RopeConfig, ...]) -> Any:
    return write_rope(ropes[0])


_LAYER: Names = {
    "self.norm": "input_layernorm",
    "self.qkv": Name(
        "attention.query_key_value", lambda config, ours: (config.n_heads, 3, config.head_width), "rows", (1, 0, 2)
    ),
    "self.out": "attention.dense",
    "feedforward.norm": "post_attention_layernorm",
    "feedforward.up": "mlp.dense_h_to_4h",
    "feedforward.down": "mlp.dense_4h_to_h",
}
NAMES = {
    "decoder.inputs.words": "gpt_neox.embed_in",
    **under("decoder.blocks.{i}", "gpt_neox.layers.{i}", _LAYER),
    "decoder.final_norm": "gpt_neox.final_layer_norm",
    "language.words": "lm_head",
    "classify.classes": "score",
}


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    config = _gather(config)
    config["rope_parameters"] = {"partial_rotary_factor": 0.25, **config["rope_parameters"]}
    return config


TABLE = KeyTable(
    family="gptneox",
    model_type="gpt_neox",
    architectures=decoder_classes("GPTNeoX"),
    fields=(
        ConfigField("n_layers", "num_hidden_layers", 44),
        ConfigField("d_model", "hidden_size", 6144),
        ConfigField("n_heads", "num_attention_heads", 64),
        ConfigField("d_hidden", "intermediate_size", 24576),
        ConfigField("vocab_size", "vocab_size", 50432),
        ConfigField("max_length", "max_position_embeddings", 2048),
        activation("hidden_act", "gelu"),
        ConfigField("norm_eps", "layer_norm_eps", 1e-5),
        ConfigField("parallel", "use_parallel_residual", True),
        ConfigField("qkv_bias", "attention_bias", True),
        ConfigField("out_bias", "attention_bias", True),
        ConfigField("ropes", "rope_parameters", {}, lambda given: (read_rope(given, share=True),), _write_rope),
        ConfigField("dropout", "hidden_dropout", 0.0),
        ConfigField("attention_dropout", "attention_dropout", 0.0),
        ConfigField("tied", "tie_word_embeddings", False),
        ConfigField("init_std", "initializer_range", 0.02),
        ConfigField("end", "eos_token_id", 2, read_end, write_end),
        LABELS,
        PROBLEM,
    ),
    **by_names(
        "gptneox", NAMES, prefix="gpt_neox", ignored=(r"attention\.bias$",), aliases=((r"^embed_out\.", "lm_head."),)
    ),
    ignored_fields=frozenset({"classifier_dropout", "is_decoder"}),
    upgrade_config=adjust,
)
