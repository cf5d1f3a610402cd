"""ViTPose: the settings of its encoder stand in a config of their own within its config."""

from __future__ import annotations

from typing import Any

from anyformer.errors import ConfigError
from anyformer.recipes.vitpose import ViTPose
from anyformer.weights.table import (
    GENERAL,
    Field,
    Key,
    Table,
    both,
    each_layer,
    pair,
    read_activation,
    write_activation,
)

INSIDE = "backbone_config"
_COUNTS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def normed(ours: str, filter_name: str, norm_name: str) -> list[Key]:
    """A convolution without bias and its batch norm."""
    norm = [Key(f"{ours}.norm.{name}", f"{norm_name}.{name}") for name in _COUNTS]
    return [Key(f"{ours}.filter.weight", f"{filter_name}.weight"), *norm]


def _layer(block: str, theirs: str, qkv_bias: bool) -> list[Key]:
    rows = []
    for role in ("query", "key", "value"):
        names = both(f"{block}.self.{role}", f"{theirs}.attention.attention.{role}")
        rows += names if qkv_bias else names[:1]
    return [
        *rows,
        *both(f"{block}.self.out", f"{theirs}.attention.output.dense"),
        *both(f"{block}.self.norm", f"{theirs}.layernorm_before"),
        *both(f"{block}.feedforward.norm", f"{theirs}.layernorm_after"),
        *both(f"{block}.feedforward.up", f"{theirs}.mlp.fc1"),
        *both(f"{block}.feedforward.down", f"{theirs}.mlp.fc2"),
    ]


def keys(config: ViTPose) -> list[Key]:
    width = config.d_model
    cells = (config.image_size[0] // config.patch_size[0]) * (config.image_size[1] // config.patch_size[1])
    patch = (width, config.n_channels, *config.patch_size)
    inputs, embeddings = "encoder.inputs", "backbone.embeddings"
    classic = []
    if config.decoder == "classic":
        for i in (1, 2):
            classic += normed(f"pose.widen.{i - 1}", f"head.deconv{i}", f"head.batchnorm{i}")
    return [
        Key(f"{inputs}.positions.weight", f"{embeddings}.position_embeddings", "reshape", (1, cells + 1, width)),
        Key(f"{inputs}.patches.weight", f"{embeddings}.patch_embeddings.projection.weight", "reshape", patch),
        Key(f"{inputs}.patches.bias", f"{embeddings}.patch_embeddings.projection.bias"),
        *each_layer(config.n_layers, _layer("encoder.blocks.{i}", "backbone.encoder.layer.{i}", config.qkv_bias)),
        *both("pose.norm", "backbone.layernorm"),
        *classic,
        *both("pose.joints", "head.conv"),
    ]


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


def write_inner(config: ViTPose, today: dict[str, Any]) -> dict[str, Any]:
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


def _inner(ours: str, theirs: str, default: Any, *more: Any) -> Field:
    return Field(ours, f"{INSIDE}.{theirs}", default, *more)


_INNER = (
    _inner("n_layers", "num_hidden_layers", 12),
    _inner("d_model", "hidden_size", 768),
    _inner("n_heads", "num_attention_heads", 12),
    _inner("hidden_ratio", "mlp_ratio", 4),
    _inner("image_size", "image_size", (256, 192), pair, list),
    _inner("patch_size", "patch_size", (16, 16), pair, list),
    _inner("n_channels", "num_channels", 3),
    _inner("activation", "hidden_act", "gelu", read_activation, write_activation),
    _inner("norm_eps", "layer_norm_eps", 1e-12),
    _inner("dropout", "hidden_dropout_prob", 0.0),
    _inner("attention_dropout", "attention_probs_dropout_prob", 0.0),
    _inner("qkv_bias", "qkv_bias", True),
    _inner("layer", "layer", None),
)

TABLE = Table(
    family="vitpose",
    model_type="vitpose",
    architectures={"VitPoseForPoseEstimation": {}},
    fields=(
        *_INNER,
        Field("n_joints", "id2label", {"0": "", "1": ""}, len, lambda n: {str(i): f"LABEL_{i}" for i in range(n)}),
        Field("scale", "scale_factor", 4),
        Field(
            "decoder",
            "use_simple_decoder",
            True,
            lambda simple: "simple" if simple else "classic",
            lambda decoder: decoder == "simple",
        ),
    ),
    keys=keys,
    inert=frozenset(
        {INSIDE, "backbone", "backbone_kwargs", "use_pretrained_backbone", "use_timm_backbone"}
        | {
            f"{INSIDE}.{name}"
            for name in ("num_experts", "part_features", "out_indices", "out_features", "stage_names")
        }
    ),
    extras=write_inner,
    adjust=adjust,
)
