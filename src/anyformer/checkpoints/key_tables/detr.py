"""DETR. Its residual network comes in two spellings: transformers' own, and timm's, as in the files on the hub."""

from __future__ import annotations

import re
from typing import Any

from anyformer.checkpoints.key_table import LABELS, ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.key_tables.marian import SIDES, layers
from anyformer.checkpoints.key_tables.resnet import read_net, resnet_keys, write_net
from anyformer.checkpoints.names import Name, by_names
from anyformer.errors import ConfigError
from anyformer.layers.resnet import ResNetConfig
from anyformer.recipes.detr import DETRConfig

_BACKBONE = "model.backbone.conv_encoder.model"
_TIMM = {
    "resnet18": ResNetConfig(block="basic", widths=(64, 128, 256, 512), depths=(2, 2, 2, 2)),
    "resnet34": ResNetConfig(block="basic", widths=(64, 128, 256, 512), depths=(3, 4, 6, 3)),
    "resnet50": ResNetConfig(),
    "resnet101": ResNetConfig(depths=(3, 4, 23, 3)),
    "resnet152": ResNetConfig(depths=(3, 8, 36, 3)),
}


NAMES = {
    "encoder.inputs.positions.row": "model.position_embedding.row_embeddings.weight",
    "encoder.inputs.positions.column": "model.position_embedding.column_embeddings.weight",
    "encoder.inputs.project.weight": Name("model.input_projection.weight", lambda config, ours: (*ours.shape, 1, 1)),
    "encoder.inputs.project.bias": "model.input_projection.bias",
    "decoder.inputs.vectors": "model.query_position_embeddings",
    **layers("encoder"),
    **layers("decoder"),
    "decoder.final_norm": "model.decoder.layernorm",
    "boxes.classes": "class_labels_classifier",
    **{f"boxes.boxes.{i}": f"bbox_predictor.layers.{i}" for i in range(3)},
}


def _from_timm(found: re.Match[str]) -> str:
    """layer2.0.bn1.weight -> encoder.stages.1.layers.0.layer.0.normalization.weight"""
    stage, block, kind, number, rest = found.groups()
    layer = f"{_BACKBONE}.encoder.stages.{int(stage) - 1}.layers.{block}"
    if kind == "downsample.":
        return f"{layer}.shortcut.{'convolution' if number == '0' else 'normalization'}.{rest}"
    return f"{layer}.layer.{int(number) - 1}.{'convolution' if kind == 'conv' else 'normalization'}.{rest}"


def _to_timm(name: str) -> str:
    """The way back."""
    name = re.sub(r"\.embedder\.embedder\.convolution\.", ".conv1.", name)
    name = re.sub(r"\.embedder\.embedder\.normalization\.", ".bn1.", name)

    def spell(found: re.Match[str]) -> str:
        stage, block, part, number, kind = found.groups()
        layer = f".layer{int(stage) + 1}.{block}"
        if part == "shortcut":
            return f"{layer}.downsample.{0 if kind == 'convolution' else 1}."
        return f"{layer}.{'conv' if kind == 'convolution' else 'bn'}{int(number) + 1}."

    pattern = r"\.encoder\.stages\.(\d+)\.layers\.(\d+)\.(shortcut|layer)\.?(\d+)?\.(convolution|normalization)\."
    return re.sub(pattern, spell, name)


def adjust(config: dict[str, Any]) -> dict[str, Any]:
    """Every way of naming a backbone, as the one dictionary that says all of it."""
    backbone = config.get("backbone_config")
    if backbone is None:
        if config.get("use_timm_backbone", True) is False:
            backbone = {"model_type": "resnet"}
        else:
            given = config.get("backbone_kwargs") or {}
            backbone = {
                "model_type": "timm_backbone",
                "backbone": config.get("backbone") or "resnet50",
                "num_channels": given.get("in_chans", config.get("num_channels", 3)),
                "output_stride": given.get("output_stride", 16 if config.get("dilation") else None),
            }
    return {**config, "backbone_config": backbone}


def read_backbone(config: dict[str, Any]) -> ResNetConfig:
    if config.get("model_type") == "timm_backbone":
        name = config.get("backbone")
        if name not in _TIMM:
            raise ConfigError(f"the backbone {name} is not one of {', '.join(_TIMM)}.")
        stride = config.get("output_stride")
        if stride not in (None, 16, 32):
            raise ConfigError(f"an output_stride of {stride} is not 16 or 32.")
        return _TIMM[name].replace(n_channels=config.get("num_channels", 3), dilation=stride == 16)
    if config.get("model_type") != "resnet":
        raise ConfigError(f"a backbone of type {config.get('model_type')} is not a resnet.")
    depths = tuple(config.get("depths", (3, 4, 6, 3)))
    names = ["stem", *(f"stage{i + 1}" for i in range(len(depths)))]
    wanted = config.get("out_features") or [names[i] for i in config.get("out_indices") or [len(depths)]]
    net = read_net(config, "frozen")
    return net.replace(n_stages=max(names.index(name) for name in wanted))


def _same_net(a: ResNetConfig, b: ResNetConfig) -> bool:
    return a.replace(n_stages=a.used, dilation=False) == b.replace(n_stages=b.used, n_channels=a.n_channels)


def write_backbone(config: DETRConfig, today: dict[str, Any]) -> dict[str, Any]:
    """transformers' own form where it can say it; a dilated network only timm's can."""
    net = config.backbone
    given = today.get("backbone_config")
    if given and read_backbone(given) == net and (given["model_type"] == "resnet") != net.dilation:
        return {}
    if net.dilation:
        names = [name for name, known in _TIMM.items() if _same_net(net, known)]
        if not names:
            raise ConfigError("A dilated backbone has a Hugging Face form only as timm's resnet18, 34, 50, 101 or 152.")
        return {
            "backbone_config": None,
            "backbone": names[0],
            "use_timm_backbone": True,
            "use_pretrained_backbone": False,
            "num_channels": net.n_channels,
            "dilation": True,
        }
    own = {
        "model_type": "resnet",
        **write_net(net),
        "out_features": [("stem", *(f"stage{i + 1}" for i in range(len(net.depths))))[net.used]],
    }
    return {
        "backbone_config": own,
        "backbone": None,
        "backbone_kwargs": None,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
    }


def _whole(value: float) -> float | int:
    """transformers takes these as whole numbers."""
    return int(value) if value == int(value) else value


_ALIASES: tuple[tuple[str, Any], ...] = (
    (r"^(backbone|input_projection|position_embedding|query_position_embeddings|encoder|decoder)\.", r"model.\1."),
    (r"^model\.backbone\.model\.", f"{_BACKBONE}."),
    (rf"^{re.escape(_BACKBONE)}\.conv1\.", f"{_BACKBONE}.embedder.embedder.convolution."),
    (rf"^{re.escape(_BACKBONE)}\.bn1\.", f"{_BACKBONE}.embedder.embedder.normalization."),
    (rf"^{re.escape(_BACKBONE)}\.layer(\d+)\.(\d+)\.(conv|bn|downsample\.)(\d+)\.(.*)$", _from_timm),
    (r"\.o_proj\.", ".out_proj."),
    (r"\.mlp\.(fc[12])\.", r".\1."),
)

_PLAIN = {"stem": None, "patch_size": None, "anchors": False}


def rename(config: DETRConfig, name: str) -> str:
    name = _to_timm(name) if config.backbone.dilation else name
    return name.removeprefix("model.") if config.head == "base" else name


TABLE = KeyTable(
    family="detr",
    model_type="detr",
    architectures={"DetrForObjectDetection": {"head": "boxes", **_PLAIN}, "DetrModel": {"head": "base", **_PLAIN}},
    fields=(
        ConfigField("backbone", "backbone_config", None, read_backbone, lambda net: None),
        *with_defaults(
            SIDES,
            encoder_layers=6,
            decoder_layers=6,
            d_model=256,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=2048,
            decoder_ffn_dim=2048,
            activation_function="relu",
        ),
        ConfigField("n_queries", "num_queries", 100),
        ConfigField("positions", "position_embedding_type", "sine"),
        ConfigField("auxiliary_loss", "auxiliary_loss", False),
        ConfigField("class_cost", "class_cost", 1.0, float, _whole),
        ConfigField("box_cost", "bbox_cost", 5.0, float, _whole),
        ConfigField("giou_cost", "giou_cost", 2.0, float, _whole),
        ConfigField("box_weight", "bbox_loss_coefficient", 5.0, float, _whole),
        ConfigField("giou_weight", "giou_loss_coefficient", 2.0, float, _whole),
        ConfigField("no_object_weight", "eos_coefficient", 0.1, float),
        LABELS,
    ),
    **by_names(
        "detr",
        NAMES,
        special=lambda config: resnet_keys(config.backbone, "encoder.inputs.resnet", _BACKBONE),
        ignored=(r"num_batches_tracked$",),
        aliases=_ALIASES,
    ),
    # Masks' coefficients weigh losses that this class has not; initial spreads and layer drop do not touch a trained
    # model.
    # `dilation` has a meaning only for timm's networks, where `adjust` reads it.
    ignored_fields=frozenset(
        "backbone backbone_kwargs use_timm_backbone use_pretrained_backbone num_channels dilation init_std"
        " init_xavier_std encoder_layerdrop decoder_layerdrop mask_loss_coefficient dice_loss_coefficient"
        " classifier_dropout max_position_embeddings num_hidden_layers scale_embedding".split()
    ),
    rename=rename,
    upgrade_config=adjust,
    extra_fields=write_backbone,
)
