"""BEiT. The names are those of the files on the hub; those that transformers has in memory are read too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyformer.checkpoints.key_table import (
    ENCODER,
    LABELS,
    PICTURES,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    each_layer,
    strip_prefix,
    vectors,
    weight_and_bias,
    without_key_bias,
)
from anyformer.checkpoints.key_tables.vit import LAYER_ALIASES, cells, classes, patches, vit_layer
from anyformer.checkpoints.key_tables.vitpose import normed
from anyformer.errors import ConfigError
from anyformer.recipes.beit import BEiTConfig

_EACH, _SHARED = "use_relative_position_bias", "use_shared_relative_position_bias"
_TABLE = "relative_position_bias.relative_position_bias_table"


def _layer(config: BEiTConfig) -> list[Key]:
    ours, theirs = "encoder.blocks.{i}", "beit.encoder.layer.{i}"
    rows = without_key_bias(vit_layer(ours, theirs, qkv_bias=True))
    if config.layer_scale is not None:
        rows.append(Key(f"{ours}.self.layer_scale.weight", f"{theirs}.lambda_1"))
        rows.append(Key(f"{ours}.feedforward.layer_scale.weight", f"{theirs}.lambda_2"))
    if config.relative_position_bias == "each":
        rows.append(Key("encoder.block_positions.{i}.weight", f"{theirs}.attention.attention.{_TABLE}"))
    return rows


def _inputs(config: BEiTConfig) -> list[Key]:
    ours, theirs, width = "encoder.inputs", "beit.embeddings", config.d_model
    rows = [
        vectors(f"{ours}.class_token.weight", f"{theirs}.cls_token", 1, width),
        *patches(theirs, (width, config.n_channels, *config.patch_size)),
    ]
    if config.mask_token:
        rows.append(vectors(f"{ours}.mask_token.weight", f"{theirs}.mask_token", 1, width))
    if config.positions == "learned":
        rows.append(vectors(f"{ours}.positions.weight", f"{theirs}.position_embeddings", cells(config) + 1, width))
    return rows


def _head(config: BEiTConfig) -> list[Key]:
    if config.head == "base":
        return weight_and_bias("base.norm", "beit.pooler.layernorm") if config.mean_pooling else []
    if config.head == "words":
        return [*weight_and_bias("words.norm", "layernorm"), *weight_and_bias("words.words", "lm_head")]
    if config.head == "classify":
        norm = weight_and_bias("classify.norm", "beit.pooler.layernorm") if config.mean_pooling else []
        return [*norm, *classes(config)]
    return _segment(config)


def _conv(ours: str, theirs: str) -> list[Key]:
    return normed(f"segment.{ours}", f"{theirs}.conv", f"{theirs}.bn")


def _segment(config: BEiTConfig) -> list[Key]:
    rows = [*weight_and_bias("segment.grids.first", "fpn1.0"), *weight_and_bias("segment.grids.second", "fpn1.3")]
    rows += [key for key in normed("segment.grids", "", "fpn1.1") if ".norm." in key.ours]
    rows += weight_and_bias("segment.grids.twice", "fpn2.0")
    for i in range(len(config.pools)):
        rows += _conv(f"pools.{i}", f"decode_head.psp_modules.{i}.1")
    for i in range(3):
        rows += _conv(f"sides.{i}", f"decode_head.lateral_convs.{i}")
        rows += _conv(f"outs.{i}", f"decode_head.fpn_convs.{i}")
    rows += _conv("pooled", "decode_head.bottleneck") + _conv("together", "decode_head.fpn_bottleneck")
    rows += weight_and_bias("segment.classes", "decode_head.classifier")
    if config.auxiliary:
        for i in range(config.n_auxiliary_convs):
            rows += _conv(f"helper.layers.{i}", f"auxiliary_head.convs.{i}")
        rows += _conv("helper.again", "auxiliary_head.conv_cat") if config.auxiliary_concat_input else []
        rows += weight_and_bias("segment.helper.classes", "auxiliary_head.classifier")
    return rows


def keys(config: BEiTConfig) -> list[Key]:
    rows = [*_inputs(config), *each_layer(config.n_layers, _layer(config)), *_head(config)]
    if config.relative_position_bias == "shared":
        rows.append(Key("encoder.positions.weight", f"beit.encoder.{_TABLE}"))
    if not config.mean_pooling:
        last = weight_and_bias("encoder.final_norm", "beit.layernorm")
        # BeitModel's files leave out the prefix.
        short = [replace(key, also=(key.theirs.removeprefix("beit."),)) for key in last]
        rows += short if config.head == "base" else last
    return rows


def ignored_keys(config: BEiTConfig) -> tuple[str, ...]:
    others = {"base": r"^(classifier|lm_head|layernorm)\.", "classify": r"^(lm_head|layernorm)\."}
    pooler = r"^beit\.pooler\." if config.head in ("words", "segment") or not config.mean_pooling else r"^$"
    mask = r"^$" if config.mask_token else r"^beit\.embeddings\.mask_token$"
    return (others.get(config.head, r"^classifier\."), pooler, mask, r"relative_position_index$")


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    if config.get(_EACH) and config.get(_SHARED):
        raise ConfigError(f'"{_EACH}" and "{_SHARED}" are both set; anyformer supports one of them.')
    relative = "each" if config.get(_EACH) else "shared" if config.get(_SHARED) else "none"
    n_layers = config.get("num_hidden_layers", 12)
    names = ["stem", *(f"stage{i + 1}" for i in range(n_layers))]
    indices = config.get("out_indices") or config.get("_out_indices") or config.get("segmentation_indices")
    if indices is None:
        indices = [names.index(name) for name in config.get("out_features") or [names[-1]]]
    return {**config, "relative_position_bias": relative, "out_indices": [i % len(names) for i in indices]}


def extras(config: BEiTConfig, today: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"relative_position_bias": None}
    if today.get("relative_position_bias") != config.relative_position_bias:
        said |= {_EACH: config.relative_position_bias == "each", _SHARED: config.relative_position_bias == "shared"}
    if config.head != "segment" and not today:
        said["out_indices"] = None
    elif today and _read_layers(today["out_indices"]) != config.layers:
        said["out_features"] = None
    return said


def _read_layers(indices: list[int]) -> tuple[int, ...]:
    """Theirs count the patches themselves as 1."""
    return tuple(i - 1 for i in indices)


TABLE = KeyTable(
    family="beit",
    model_type="beit",
    architectures={
        "BeitModel": {"head": "base"},
        "BeitForImageClassification": {"head": "classify"},
        "BeitForMaskedImageModeling": {"head": "words"},
        "BeitForSemanticSegmentation": {"head": "segment"},
    },
    fields=(
        *ENCODER,
        *PICTURES,
        ConfigField("vocab_size", "vocab_size", 8192),
        ConfigField("drop_path", "drop_path_rate", 0.1),
        ConfigField("layer_scale", "layer_scale_init_value", 0.1, lambda x: x if x > 0 else None, lambda x: x or 0.0),
        ConfigField(
            "positions",
            "use_absolute_position_embeddings",
            False,
            lambda learned: "learned" if learned else "none",
            lambda positions: positions == "learned",
        ),
        ConfigField("relative_position_bias", "relative_position_bias", "none"),
        ConfigField("mask_token", "use_mask_token", False),
        ConfigField("mean_pooling", "use_mean_pooling", True),
        ConfigField("layers", "out_indices", None, _read_layers, lambda layers: [i + 1 for i in layers]),
        ConfigField("pools", "pool_scales", (1, 2, 3, 6), tuple, list),
        ConfigField("auxiliary", "use_auxiliary_head", True),
        ConfigField("auxiliary_weight", "auxiliary_loss_weight", 0.4),
        ConfigField("d_auxiliary", "auxiliary_channels", 256),
        ConfigField("n_auxiliary_convs", "auxiliary_num_convs", 1),
        ConfigField("auxiliary_concat_input", "auxiliary_concat_input", False),
        ConfigField("ignore", "semantic_loss_ignore_index", 255),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    ignored_fields=frozenset({_EACH, _SHARED, "add_fpn", "reshape_hidden_states", "stage_names", "out_features"})
    | {"segmentation_indices"},
    aliases=(
        (r"^(embeddings|encoder|layers|pooler|shared_position_bias)\.", r"beit.\1."),
        (r"^beit\.layers\.", "beit.encoder.layer."),
        (r"^beit\.shared_position_bias\.", "beit.encoder.relative_position_bias."),
        (r"(layer\.\d+)\.relative_position_bias\.", r"\1.attention.attention.relative_position_bias."),
        *LAYER_ALIASES,
    ),
    ignored_keys=ignored_keys,
    rename=strip_prefix("beit."),
    upgrade_config=adjust,
    extra_fields=extras,
)
