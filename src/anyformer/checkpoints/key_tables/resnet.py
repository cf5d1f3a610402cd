"""ResNet, and the names of its pieces that DETR's backbone shares."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import (
    LABELS,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    read_activation,
    strip_prefix,
    weight_and_bias,
    write_activation,
)
from anyformer.errors import ConfigError
from anyformer.layers.resnet import ResNetConfig
from anyformer.recipes.resnet import ResNetClassifierConfig

STATISTICS = ("weight", "bias", "running_mean", "running_var")


def _convolution(ours: str, theirs: str, norm: str) -> list[Key]:
    names = (*STATISTICS, "num_batches_tracked") if norm == "batch" else STATISTICS
    return [
        Key(f"{ours}.filter.weight", f"{theirs}.convolution.weight"),
        *(Key(f"{ours}.norm.{name}", f"{theirs}.normalization.{name}") for name in names),
    ]


def resnet_keys(config: ResNetConfig, ours: str, prefix: str) -> list[Key]:
    rows = _convolution(f"{ours}.stem", f"{prefix}.embedder.embedder", config.norm)
    d_in = config.d_stem
    for stage, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        for block in range(depth):
            mine, theirs = f"{ours}.stages.{stage}.{block}", f"{prefix}.encoder.stages.{stage}.layers.{block}"
            for place in range(2 if config.block == "basic" else 3):
                rows += _convolution(f"{mine}.layers.{place}", f"{theirs}.layer.{place}", config.norm)
            strides = stage > 0 and not (config.dilation and stage == len(config.depths) - 1)
            if block == 0 and (d_in != width or strides or (stage == 0 and config.downsample_in_first_stage)):
                rows += _convolution(f"{mine}.shortcut", f"{theirs}.shortcut", config.norm)
        d_in = width
    return rows


def read_net(config: dict[str, Any], norm: Any) -> ResNetConfig:
    """A ResNet's own fields; the features that it is read at are said elsewhere."""
    return ResNetConfig(
        block=config.get("layer_type", "bottleneck"),
        n_channels=config.get("num_channels", 3),
        d_stem=config.get("embedding_size", 64),
        widths=tuple(config.get("hidden_sizes", (256, 512, 1024, 2048))),
        depths=tuple(config.get("depths", (3, 4, 6, 3))),
        activation=read_activation(config.get("hidden_act", "relu")),
        downsample_in_first_stage=config.get("downsample_in_first_stage", False),
        downsample_in_bottleneck=config.get("downsample_in_bottleneck", False),
        norm=norm,
    )


def write_net(net: ResNetConfig) -> dict[str, Any]:
    if net.stem != "large":
        raise ConfigError("A residual network with a small stem has no Hugging Face form; save it in anyformer's own.")
    return {
        "layer_type": net.block,
        "num_channels": net.n_channels,
        "embedding_size": net.d_stem,
        "hidden_sizes": list(net.widths),
        "depths": list(net.depths),
        "hidden_act": write_activation(net.activation),
        "downsample_in_first_stage": net.downsample_in_first_stage,
        "downsample_in_bottleneck": net.downsample_in_bottleneck,
    }


FIELDS = frozenset(write_net(ResNetConfig()))


def keys(config: ResNetClassifierConfig) -> list[Key]:
    rows = resnet_keys(config.backbone, "encoder.inputs.resnet", "resnet")
    classes = config.head == "classify" and config.n_labels
    return [*rows, *(weight_and_bias("classify.classes", "classifier.1") if classes else [])]


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "backbone": read_net(config, "batch")}


def extras(config: ResNetClassifierConfig, today: dict[str, Any]) -> dict[str, Any]:
    """Their fields say what our one does, wherever that is another than the folder's."""
    if config.backbone.norm != "batch" or config.backbone.dilation or config.backbone.n_stages is not None:
        raise ConfigError(
            "Hugging Face's ResNet learns its norms, is not dilated and uses every stage; this one is not so."
        )
    said = {} if today and read_net(today, "batch") == config.backbone else write_net(config.backbone)
    return {**said, "backbone": None}


TABLE = KeyTable(
    family="resnet",
    model_type="resnet",
    architectures={"ResNetForImageClassification": {"head": "classify"}, "ResNetModel": {"head": "base"}},
    fields=(ConfigField("backbone", "backbone", None), LABELS, PROBLEM),
    keys=keys,
    aliases=((r"^(embedder|encoder)\.", r"resnet.\1."),),
    ignored_keys=lambda config: (r"^classifier\.",) if config.head == "base" else (),
    rename=strip_prefix("resnet."),
    ignored_fields=frozenset({*FIELDS, "out_features", "out_indices", "stage_names"}),
    upgrade_config=adjust,
    extra_fields=extras,
)
