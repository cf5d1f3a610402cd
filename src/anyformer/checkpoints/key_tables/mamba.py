"""Mamba. Its first files named the word table "embedding" instead of "embeddings"."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ConfigField, KeyTable, activation, first
from anyformer.checkpoints.names import Name, Names, by_names, under
from anyformer.recipes.mamba import MambaConfig

_MIXER: Names = {
    "mixer.norm": "norm",
    "mixer.enter": "mixer.in_proj",
    "mixer.conv.weight": Name("mixer.conv1d.weight", lambda config, ours: (config.inner, 1, config.kernel)),
    "mixer.conv.bias": "mixer.conv1d.bias",
    "mixer.select": "mixer.x_proj",
    "mixer.recurrence.step_weight": "mixer.dt_proj.weight",
    "mixer.recurrence.step_bias": "mixer.dt_proj.bias",
    "mixer.recurrence.decay": "mixer.A_log",
    "mixer.recurrence.skip": "mixer.D",
    "mixer.out": "mixer.out_proj",
}


def names(config: MambaConfig) -> Names:
    side = "decoder" if config.head == "language" else "encoder"
    return {
        f"{side}.inputs.words": "backbone.embeddings",
        **under(f"{side}.blocks.{{i}}", "backbone.layers.{i}", _MIXER),
        f"{side}.final_norm": "backbone.norm_f",
        "language.words": "lm_head",
    }


def _rank(value: Any) -> int | None:
    return None if value == "auto" else int(value)


def _adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Their configs repeat the mixer's width where it follows from the model's."""
    follows = config.get("expand", 2) * config.get("hidden_size", 768)
    return {name: value for name, value in config.items() if name != "intermediate_size" or value != follows}


_ALIASES = (
    (r"^(embeddings?|layers|norm_f)\.", r"backbone.\1."),
    (r"^backbone\.embedding\.", "backbone.embeddings."),
)

TABLE = KeyTable(
    family="mamba",
    model_type="mamba",
    architectures={"MambaForCausalLM": {"head": "language"}, "MambaModel": {"head": "base"}},
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
    **by_names("mamba", names, prefix="backbone", aliases=_ALIASES),
    # How fresh weights are drawn; which of several equal scans transformers takes; in which precision it keeps the
    # residuals of half-precision models; what follows from other fields, or is in published folders and read by nobody.
    ignored_fields=frozenset(
        "time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor rescale_prenorm_residual"
        " use_mambapy use_associative_scan residual_in_fp32 layer_types d_inner d_model n_layer"
        " fused_add_norm pad_vocab_size_multiple rms_norm ssm_cfg".split()
    ),
    upgrade_config=_adjust,
)
