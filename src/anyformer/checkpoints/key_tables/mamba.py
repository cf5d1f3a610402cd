"""Mamba. Its first files named the word table "embedding" instead of "embeddings"."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, activation, each_layer, first, lm_head_keys
from anyformer.recipes.mamba import MambaConfig


def keys(config: MambaConfig) -> list[Key]:
    mixer, theirs = "decoder.blocks.{i}.mixer", "backbone.layers.{i}.mixer"
    layer = [
        Key("decoder.blocks.{i}.mixer.norm.weight", "backbone.layers.{i}.norm.weight"),
        Key(f"{mixer}.enter.weight", f"{theirs}.in_proj.weight"),
        Key(f"{mixer}.conv.weight", f"{theirs}.conv1d.weight", "reshape", (config.inner, 1, config.kernel)),
        Key(f"{mixer}.select.weight", f"{theirs}.x_proj.weight"),
        Key(f"{mixer}.recurrence.step_weight", f"{theirs}.dt_proj.weight"),
        Key(f"{mixer}.recurrence.step_bias", f"{theirs}.dt_proj.bias"),
        Key(f"{mixer}.recurrence.decay", f"{theirs}.A_log"),
        Key(f"{mixer}.recurrence.skip", f"{theirs}.D"),
        Key(f"{mixer}.out.weight", f"{theirs}.out_proj.weight"),
    ]
    if config.conv_bias:
        layer.append(Key(f"{mixer}.conv.bias", f"{theirs}.conv1d.bias"))
    if config.bias:
        layer += [
            Key(f"{mixer}.enter.bias", f"{theirs}.in_proj.bias"),
            Key(f"{mixer}.out.bias", f"{theirs}.out_proj.bias"),
        ]
    return [
        *lm_head_keys(config.tied, "backbone.embeddings.weight"),
        *each_layer(config.n_layers, layer),
        Key("decoder.final_norm.weight", "backbone.norm_f.weight"),
    ]


def _rank(value: Any) -> int | None:
    return None if value == "auto" else int(value)


def _adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Their configs repeat the mixer's width where it follows from the model's."""
    follows = config.get("expand", 2) * config.get("hidden_size", 768)
    return {name: value for name, value in config.items() if name != "intermediate_size" or value != follows}


TABLE = KeyTable(
    family="mamba",
    model_type="mamba",
    architectures={"MambaForCausalLM": {}},
    fields=(
        ConfigField("n_layers", "num_hidden_layers", 32),
        ConfigField("d_model", "hidden_size", 768),
        ConfigField("expand", "expand", 2),
        ConfigField("d_inner", "intermediate_size", None),
        ConfigField("d_state", "state_size", 16),
        ConfigField("rank", "time_step_rank", "auto", _rank, lambda rank: "auto" if rank is None else rank),
        ConfigField("kernel", "conv_kernel", 4),
        ConfigField("vocab_size", "vocab_size", 50280),
        activation("hidden_act", "silu"),
        ConfigField("bias", "use_bias", False),
        ConfigField("conv_bias", "use_conv_bias", True),
        ConfigField("norm_eps", "layer_norm_epsilon", 1e-5),
        ConfigField("tied", "tie_word_embeddings", True),
        ConfigField("padding", "pad_token_id", 0),
        ConfigField("end", "eos_token_id", 0, read=first),
    ),
    keys=keys,
    # How fresh weights are drawn; which of several equal scans transformers takes; in which precision it keeps the
    # residuals of half-precision models; what follows from other fields, or is in published folders and read by nobody.
    ignored_fields=frozenset(
        "time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual"
        " use_mambapy use_associative_scan residual_in_fp32 layer_types d_inner d_model n_layer"
        " fused_add_norm pad_vocab_size_multiple rms_norm ssm_cfg".split()
    ),
    aliases=((r"^backbone\.embedding\.", "backbone.embeddings."),),
    upgrade_config=_adjust,
)
