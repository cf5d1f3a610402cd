"""BEiT. The names are those of the files on the hub; those that transformers has in memory are read too."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import ENCODER, LABELS, PICTURES, PROBLEM, ConfigField, KeyTable, mean_pooling
from anyformer.checkpoints.key_tables.vit import LAYER, LAYER_ALIASES, MASK, body, no_key_bias
from anyformer.checkpoints.key_tables.vitpose import normed
from anyformer.checkpoints.names import Names, by_names
from anyformer.errors import ConfigError
from anyformer.recipes.beit import BEiTConfig

_EACH, _SHARED = "use_relative_position_bias", "use_shared_relative_position_bias"
_TABLE = "relative_position_bias.relative_position_bias_table"


_LAYER: Names = {
    **no_key_bias(LAYER),
    "self.layer_scale.weight": "lambda_1",
    "feedforward.layer_scale.weight": "lambda_2",
}


def _conv(ours: str, theirs: str) -> dict[str, str]:
    return normed(f"segment.{ours}", f"{theirs}.conv", f"{theirs}.bn")


def _segment(config: BEiTConfig) -> dict[str, str]:
    rows = {"segment.grids.first": "fpn1.0", "segment.grids.norm": "fpn1.1", "segment.grids.second": "fpn1.3"}
    rows |= {"segment.grids.twice": "fpn2.0"}
    for i in range(len(config.pools)):
        rows |= _conv(f"pools.{i}", f"decode_head.psp_modules.{i}.1")
    for i in range(3):
        rows |= _conv(f"sides.{i}", f"decode_head.lateral_convs.{i}")
        rows |= _conv(f"outs.{i}", f"decode_head.fpn_convs.{i}")
    rows |= _conv("pooled", "decode_head.bottleneck") | _conv("together", "decode_head.fpn_bottleneck")
    for i in range(config.n_auxiliary_convs):
        rows |= _conv(f"helper.layers.{i}", f"auxiliary_head.convs.{i}")
    rows |= _conv("helper.again", "auxiliary_head.conv_cat")
    return {
        **rows,
        "segment.classes": "decode_head.classifier",
        "segment.helper.classes": "auxiliary_head.classifier",
    }


_FINAL = ("beit.layernorm", "layernorm")  # BeitModel's files leave out the prefix


def names(config: BEiTConfig) -> Names:
    return {
        **body("beit", _LAYER),
        "encoder.final_norm": _FINAL if config.head == "base" else _FINAL[0],
        "encoder.positions.weight": f"beit.encoder.{_TABLE}",
        **{
            f"encoder.block_positions.{i}.weight": f"beit.encoder.layer.{i}.attention.attention.{_TABLE}"
            for i in range(config.n_layers)
        },
        "base.norm": "beit.pooler.layernorm",
        "classify.norm": "beit.pooler.layernorm",
        "classify.classes": "classifier",
        "words.norm": "layernorm",
        "words.words": "lm_head",
        **_segment(config),
    }


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


_ALIASES = (
    (r"^(embeddings|encoder|layers|pooler|shared_position_bias)\.", r"beit.\1."),
    (r"^beit\.layers\.", "beit.encoder.layer."),
    (r"^beit\.shared_position_bias\.", "beit.encoder.relative_position_bias."),
    (r"(layer\.\d+)\.relative_position_bias\.", r"\1.attention.attention.relative_position_bias."),
    *LAYER_ALIASES,
)

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
        mean_pooling("class"),
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
    **by_names("beit", names, prefix="beit", aliases=_ALIASES, ignored=(*MASK, r"relative_position_index$")),
    ignored_fields=frozenset({_EACH, _SHARED, "add_fpn", "reshape_hidden_states", "stage_names", "out_features"})
    | {"segmentation_indices"},
    upgrade_config=adjust,
    extra_fields=extras,
)
