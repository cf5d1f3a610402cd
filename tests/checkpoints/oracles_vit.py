"""The oracles of the image classifiers; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.checkpoints.cases import Batch, Case

HOMES = {"DeiT": "deit", "ResNet": "resnet"}

_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "DeiT": ("DeiTConfig", {**_TEXT, "image_size": 24, "patch_size": 8}),
    "ResNet": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 2, 1, 2], "layer_type": "basic"},
    ),
}

ARCHITECTURES: tuple[str, ...] = (
    "DeiTModel",
    "DeiTForImageClassification",
    "DeiTForImageClassificationWithTeacher",
    "ResNetForImageClassification",
)


def pictures(architecture: str) -> Case:
    return Case({"pixel_values": torch.randn(2, 3, 24, 24)}, {})


CASES: dict[str, Callable[[str], Case]] = dict.fromkeys(SMALL, pictures)

LABELS: dict[str, Callable[[Batch], Batch]] = {
    "DeiTForImageClassification": lambda b: {"labels": torch.tensor([0, 1])},
    "ResNetForImageClassification": lambda b: {"labels": torch.tensor([0, 1])},
}

# What a field of the configs is set to, where its type does not say.
VALUES: dict[str, Any] = {"hidden_sizes": [8, 12, 16, 24], "depths": [2, 1, 1, 1], "layer_type": "bottleneck"}
MORE: list[tuple[str, str, Any]] = [
    ("DeiTForImageClassification", "image_size", [24, 40]),
    ("DeiTForImageClassification", "patch_size", [8, 4]),
    ("ResNetForImageClassification", "hidden_act", "gelu"),
]
