"""ViTPose: the settings of its encoder stand in a config of their own within its config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyformer.checkpoints.key_table import ENCODER, GENERAL, LABELS, ConfigField, KeyTable, pair, with_defaults
from anyformer.checkpoints.key_tables.vit import LAYER, body
from anyformer.checkpoints.names import by_names
from anyformer.errors import ConfigError
from anyformer.recipes.vitpose import ViTPoseConfig

INSIDE = "backbone_config"


def normed(ours: str, filter_name: str, norm_name: str) -> dict[str, str]:
    """A convolution without bias and its batch norm."""
    return {f"{ours}.filter": filter_name, f"{ours}.norm": norm_name}


_LAYER = {**LAYER, "feedforward.up": "mlp.fc1", "feedforward.down": "mlp.fc2"}
NAMES = {
    **body("backbone", _LAYER),
    **normed("pose.widen.0", "head.deconv1", "head.batchnorm1"),
    **normed("pose.widen.1", "head.deconv2", "head.batchnorm2"),
    "pose.norm": "backbone.layernorm",
    "pose.joints": "head.conv",
}


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """The inner config's fields beside the outer ones; `layer` from whichever way the published files say it."""
    inner = config.get(INSIDE) or {"out_indices": [4]}
    if inner.get("model_type", "vitpose_backbone") != "vitpose_backbone":
        raise ConfigError(f'"{INSIDE}" is of type {inner["model_type"]}; anyformer supports only vitpose_backbone.')
    if inner.get("num_experts", 1) != 1:
        raise ConfigError(f'"num_experts" is {inner["num_experts"]}; anyformer loads ViTPose with one expert.')
    n_layers = inner.get("num_hidden_layers", 12)
    names = ["stem", *(f"stage{i + 1}" for i in range(n_layers))]
    indices = inner.get("out_indices") or inner.get("_out_indices") or [n_layers]
    chosen = inner.get("out_features") or inner.get("_out_features") or [names[i] for i in indices]
    flat = {f"{INSIDE}.{name}": value for name, value in inner.items() if name not in GENERAL}
    return {**config, **flat, f"{INSIDE}.layer": max(names.index(name) for name in chosen)}


def write_inner(config: ViTPoseConfig, today: dict[str, Any]) -> dict[str, Any]:
    """The fields of the encoder go back inside."""
    inner = dict(today.get(INSIDE) or {"model_type": "vitpose_backbone"})
    for entry in _INNER:
        name = entry.theirs.removeprefix(f"{INSIDE}.")
        ours = getattr(config, entry.ours)
        if name != "layer" and (name not in inner or entry.read(inner[name]) != ours):
            inner[name] = entry.write(ours)
    layer = config.n_layers if config.layer is None else config.layer
    if not today or today.get(f"{INSIDE}.layer") != layer:
        inner["out_indices"], inner["out_features"] = [layer], [f"stage{layer}" if layer else "stem"]
    return {**{entry.theirs: None for entry in _INNER}, INSIDE: inner}


_INNER = tuple(
    replace(entry, theirs=f"{INSIDE}.{entry.theirs}")
    for entry in (
        *with_defaults(ENCODER, without=("d_hidden",)),
        ConfigField("mlp_ratio", "mlp_ratio", 4),
        ConfigField("image_size", "image_size", (256, 192), pair, list),
        ConfigField("patch_size", "patch_size", (16, 16), pair, list),
        ConfigField("n_channels", "num_channels", 3),
        ConfigField("qkv_bias", "qkv_bias", True),
        ConfigField("layer", "layer", None),
    )
)

TABLE = KeyTable(
    family="vitpose",
    model_type="vitpose",
    architectures={"VitPoseForPoseEstimation": {}},
    fields=(
        *_INNER,
        replace(LABELS, ours="n_keypoints"),
        ConfigField("scale", "scale_factor", 4),
        ConfigField(
            "decoder",
            "use_simple_decoder",
            True,
            lambda simple: "simple" if simple else "classic",
            lambda decoder: decoder == "simple",
        ),
    ),
    **by_names("vitpose", NAMES),
    ignored_fields=frozenset(
        {INSIDE, "backbone", "backbone_kwargs", "use_pretrained_backbone", "use_timm_backbone"}
        | {
            f"{INSIDE}.{name}"
            for name in ("num_experts", "part_features", "out_indices", "out_features", "stage_names")
        }
    ),
    extra_fields=write_inner,
    upgrade_config=adjust,
)
