"""DINOv2: ViT's names of attention, with scales of the sublayers."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ENCODER, LABELS, PICTURES, PROBLEM, ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.names import Name, batch_of_one, by_names, under

_ROLES = ("query", "key", "value")
_LAYER = {
    "self.norm": "norm1",
    **{f"self.{role}": f"attention.attention.{role}" for role in _ROLES},
    "self.out": "attention.output.dense",
    "self.layer_scale.weight": "layer_scale1.lambda1",
    "feedforward.norm": "norm2",
    "feedforward.up": "mlp.fc1",
    "feedforward.down": "mlp.fc2",
    "feedforward.layer_scale.weight": "layer_scale2.lambda1",
}
_GATED = {
    "feedforward.gate_up": "mlp.weights_in",
    "feedforward.down": "mlp.weights_out",
}


def _patch(config: Any, ours: Any) -> tuple[int, ...]:
    return (config.d_model, config.n_channels, *config.patch_size)


def names(config: Any) -> dict[str, Any]:
    inputs, theirs = "encoder.inputs", "dinov2.embeddings"
    layer = {name: other for name, other in _LAYER.items() if not config.gated or name not in _UNGATED}
    return {
        f"{inputs}.class_token.weight": batch_of_one(f"{theirs}.cls_token"),
        f"{inputs}.mask_token.weight": f"{theirs}.mask_token",
        f"{inputs}.positions.weight": batch_of_one(f"{theirs}.position_embeddings"),
        f"{inputs}.patches.weight": Name(f"{theirs}.patch_embeddings.projection.weight", _patch),
        f"{inputs}.patches.bias": f"{theirs}.patch_embeddings.projection.bias",
        **under("encoder.blocks.{i}", "dinov2.encoder.layer.{i}", {**layer, **(_GATED if config.gated else {})}),
        "encoder.final_norm": "dinov2.layernorm",
        "classify.classes": "classifier",
    }


_UNGATED = ("feedforward.up", "feedforward.down")
_BY_LETTER = {role[0]: role for role in _ROLES}
_ALIASES = (
    (r"^(embeddings|encoder|layernorm)\.", r"dinov2.\1."),
    (r"\.attention\.([qkv])_proj\.", lambda found: f".attention.attention.{_BY_LETTER[found[1]]}."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)


def _adjust(config: dict[str, Any]) -> dict[str, Any]:
    """The gated network has SiLU whatever hidden_act says."""
    return {**config, "hidden_act": "silu"} if config.get("use_swiglu_ffn") else config


TABLE = KeyTable(
    family="dinov2",
    model_type="dinov2",
    architectures={"Dinov2Model": {"head": "base"}, "Dinov2ForImageClassification": {"head": "classify"}},
    fields=(
        *with_defaults(ENCODER, without=("d_hidden",), layer_norm_eps=1e-6),
        *with_defaults(PICTURES, patch_size=14),
        ConfigField("mlp_ratio", "mlp_ratio", 4),
        ConfigField("qkv_bias", "qkv_bias", True),
        ConfigField("layer_scale", "layerscale_value", 1.0),
        ConfigField("drop_path", "drop_path_rate", 0.0, float),
        ConfigField("gated", "use_swiglu_ffn", False),
        ConfigField("mask_token", "use_mask_token", True),
        LABELS,
        PROBLEM,
    ),
    **by_names("dinov2", names, prefix="dinov2", aliases=_ALIASES),
    # What the class as a backbone gives out.
    ignored_fields=frozenset("apply_layernorm reshape_hidden_states out_features out_indices stage_names".split()),
    upgrade_config=_adjust,
)
