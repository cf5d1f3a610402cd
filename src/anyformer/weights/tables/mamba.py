"""Mamba. Its first files named the word table "embedding" instead of "embeddings"."""

from __future__ import annotations

from typing import Any

from anyformer.recipes.mamba import Mamba
from anyformer.weights.table import Field, Key, Table, activation, each_layer, first, spoken


def keys(config: Mamba) -> list[Key]:
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
        *spoken(config.tied, "backbone.embeddings.weight"),
        *each_layer(config.n_layers, layer),
        Key("decoder.final_norm.weight", "backbone.norm_f.weight"),
    ]


def _rank(value: Any) -> int | None:
    return None if value == "auto" else int(value)


def _adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Their configs repeat the mixer's width where it follows from the model's."""
    follows = config.get("expand", 2) * config.get("hidden_size", 768)
    return {name: value for name, value in config.items() if name != "intermediate_size" or value != follows}


TABLE = Table(
    family="mamba",
    model_type="mamba",
    architectures={"MambaForCausalLM": {}},
    fields=(
        Field("n_layers", "num_hidden_layers", 32),
        Field("d_model", "hidden_size", 768),
        Field("expand", "expand", 2),
        Field("d_inner", "intermediate_size", None),
        Field("d_state", "state_size", 16),
        Field("rank", "time_step_rank", "auto", _rank, lambda rank: "auto" if rank is None else rank),
        Field("kernel", "conv_kernel", 4),
        Field("vocab_size", "vocab_size", 50280),
        activation("hidden_act", "silu"),
        Field("bias", "use_bias", False),
        Field("conv_bias", "use_conv_bias", True),
        Field("norm_eps", "layer_norm_epsilon", 1e-5),
        Field("tied", "tie_word_embeddings", True),
        Field("padding", "pad_token_id", 0),
        Field("end", "eos_token_id", 0, read=first),
    ),
    keys=keys,
    # How fresh weights are drawn; which of several equal scans transformers takes; in which precision it keeps the
    # residuals of half-precision models; what follows from other fields, or is in published folders and read by nobody.
    inert=frozenset(
        "time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual"
        " use_mambapy use_associative_scan residual_in_fp32 layer_types d_inner d_model n_layer"
        " fused_add_norm pad_vocab_size_multiple rms_norm ssm_cfg".split()
    ),
    aliases=((r"^backbone\.embedding\.", "backbone.embeddings."),),
    adjust=_adjust,
)
