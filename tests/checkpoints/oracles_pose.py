"""The oracles of poses and of segmentation; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.checkpoints.cases import Batch, Case

HOMES = {"VitPoseBackbone": "vitpose_backbone", "VitPose": "vitpose", "Beit": "beit"}

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
    "Beit": (
        "BeitConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "image_size": 24,
            "patch_size": 8,
            "vocab_size": 60,
            "use_mask_token": True,
            "use_relative_position_bias": True,
            "out_indices": [1, 2, 3, 4],
            "auxiliary_channels": 12,
            "pool_scales": (1, 2),
            "num_labels": 3,
        },
    ),
}
ARCHITECTURES: tuple[str, ...] = (
    "VitPoseForPoseEstimation",
    "BeitModel",
    "BeitForImageClassification",
    "BeitForMaskedImageModeling",
    "BeitForSemanticSegmentation",
)
VALUES: dict[str, Any] = {"scale_factor": 2, "pool_scales": (1, 3)}
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("Beit", "use_shared_relative_position_bias"): {"use_relative_position_bias": False},
    ("Beit", "use_absolute_position_embeddings"): {"use_relative_position_bias": False},
}
_COVERED = torch.tensor([[1, 0, 0, 1, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0, 1, 1, 0]]).bool()
LABELS: dict[str, Callable[[Batch], Batch]] = {
    "BeitForImageClassification": lambda batch: {"labels": torch.tensor([2, 0])},
    "BeitForMaskedImageModeling": lambda batch: {"labels": torch.tensor([3, 5, 7, 9, 2, 0, 59])},
    "BeitForSemanticSegmentation": lambda batch: {"labels": _pixels()},
}


def _pixels() -> torch.Tensor:
    labels = torch.randint(0, 3, (2, 20, 28), generator=torch.Generator().manual_seed(0))
    labels[:, 3:7] = 255
    return labels


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
    size = (24, 24) if architecture.startswith("Beit") else (32, 24)
    more = {"bool_masked_pos": _COVERED} if architecture == "BeitForMaskedImageModeling" else {}
    return Case({"pixel_values": torch.randn(2, 3, *size), **more}, {})
