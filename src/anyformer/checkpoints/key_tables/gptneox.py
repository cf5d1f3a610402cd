"""GPT-NeoX and Pythia. Queries, keys and values lie head by head in one matrix."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import (
    ConfigField,
    Key,
    KeyTable,
    activation,
    each_layer,
    lm_head_keys,
    weight_and_bias,
)
from anyformer.checkpoints.key_tables.llama import read_end, write_end
from anyformer.checkpoints.key_tables.rope import gather, read_rope, write_rope
from anyformer.core.rope import RopeConfig
from anyformer.recipes.gptneox import GPTNeoXConfig

_gather = gather("rotary_emb_base", "rotary_pct")


def _write_rope(ropes: tuple[RopeConfig, ...]) -> Any:
    return write_rope(ropes[0])


def keys(config: GPTNeoXConfig) -> list[Key]:
    block, theirs = "decoder.blocks.{i}", "gpt_neox.layers.{i}"
    by_head = (config.n_heads, 3, config.d_model // config.n_heads)
    fused = f"{theirs}.attention.query_key_value"
    kinds = ("weight", "bias") if config.qkv_bias else ("weight",)
    layer = [
        *weight_and_bias(f"{block}.self.norm", f"{theirs}.input_layernorm"),
        *weight_and_bias(f"{block}.feedforward.norm", f"{theirs}.post_attention_layernorm"),
        *(Key(f"{block}.self.qkv.{kind}", f"{fused}.{kind}", "rows", by_head, axes=(1, 0, 2)) for kind in kinds),
        *(Key(f"{block}.self.out.{kind}", f"{theirs}.attention.dense.{kind}") for kind in kinds),
        *weight_and_bias(f"{block}.feedforward.up", f"{theirs}.mlp.dense_h_to_4h"),
        *weight_and_bias(f"{block}.feedforward.down", f"{theirs}.mlp.dense_4h_to_h"),
    ]
    return [
        *lm_head_keys(config.tied, "gpt_neox.embed_in.weight"),
        *each_layer(config.n_layers, layer),
        *weight_and_bias("decoder.final_norm", "gpt_neox.final_layer_norm"),
    ]


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    config = _gather(config)
    config["rope_parameters"] = {"partial_rotary_factor": 0.25, **config["rope_parameters"]}
    return config


TABLE = KeyTable(
    family="gptneox",
    model_type="gpt_neox",
    architectures={"GPTNeoXForCausalLM": {}},
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
    ),
    keys=keys,
    ignored_fields=frozenset({"classifier_dropout", "is_decoder"}),
    aliases=((r"^embed_out\.", "lm_head."),),
    ignored_keys=lambda config: (r"attention\.(bias|masked_bias)$", r"rotary_emb\.inv_freq$"),
    upgrade_config=adjust,
)
