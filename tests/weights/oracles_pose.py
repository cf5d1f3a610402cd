"""The oracles of poses and of segmentation; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .cases import Batch, Case

HOMES = {"VitPoseBackbone": "vitpose_backbone", "VitPose": "vitpose"}

_VIT = {
    "model_type": "vitpose_backbone",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "mlp_ratio": 2,
    "image_size": [32, 24],
    "patch_size": [8, 8],
    "out_indices": [2],
}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "VitPose": ("VitPoseConfig", {"backbone_config": _VIT, "num_labels": 5}),
}
ARCHITECTURES: tuple[str, ...] = ("VitPoseForPoseEstimation",)
VALUES: dict[str, Any] = {"scale_factor": 2}
BESIDE: dict[tuple[str, str], dict[str, Any]] = {}
LABELS: dict[str, Callable[[Batch], Batch]] = {}
MORE: list[tuple[str, str, Any]] = [
    ("VitPoseForPoseEstimation", "backbone_config", {**_VIT, **change})
    for change in (
        {"out_indices": [1]},
        {"out_indices": [0, 1]},
        {"qkv_bias": False},
        {"hidden_act": "relu"},
        {"layer_norm_eps": 0.01},
        {"mlp_ratio": 3},
        {"num_attention_heads": 2},
        {"image_size": [32, 24], "patch_size": [8, 4]},
    )
]


def make_case(architecture: str) -> Case:
    return Case({"pixel_values": torch.randn(2, 3, 32, 24)}, {})
