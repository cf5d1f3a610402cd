"""The published sizes of ViTPose and BEiT, and what the others of keypoints and pixels add up to."""

from __future__ import annotations

from typing import Any

from tests.recipes.sizes_vit import _basic, _convolution

_VITPOSE = {"vitpose-s": (12, 384, 12), "vitpose-b": (12, 768, 12), "vitpose-l": (24, 1024, 16)}
_VITPOSE |= {"vitpose-h": (32, 1280, 16)}


def _vitpose(n_layers: int, width: int, heads: int) -> dict[str, Any]:
    inner = {"num_hidden_layers": n_layers, "hidden_size": width, "num_attention_heads": heads}
    return {"vitpose": {**inner, "out_indices": [n_layers]}, "num_labels": 17}


_BASE = {"use_relative_position_bias": True, "num_labels": 1000}
_LARGE = {**_BASE, "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
_ADE = {"image_size": 640, "num_labels": 150}
_COVERED = {"use_mask_token": True, "use_shared_relative_position_bias": True, "use_mean_pooling": False}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{name: ("VitPoseForPoseEstimation", "VitPoseConfig", _vitpose(*size)) for name, size in _VITPOSE.items()},
    "beit-b16": ("BeitForImageClassification", "BeitConfig", _BASE),
    "beit-l16": ("BeitForImageClassification", "BeitConfig", _LARGE),
    "beit-b16-pretrain": ("BeitForMaskedImageModeling", "BeitConfig", _COVERED),
    "beit-b16-segment": (
        "BeitForSemanticSegmentation",
        "BeitConfig",
        {**_BASE, **_ADE, "out_indices": [3, 5, 7, 11]},
    ),
    "beit-l16-segment": (
        "BeitForSemanticSegmentation",
        "BeitConfig",
        {**_LARGE, **_ADE, "out_indices": [7, 11, 15, 23]},
    ),
}
# The keys' bias, which their class leaves out and which makes no difference.
BESIDES = {name: (24 * 1024 if "-l16" in name else 12 * 768) for name in PUBLISHED if name.startswith("beit")}


def _attention(width: int) -> int:
    return 4 * (width * width + width)


def _feedforward(width: int, ratio: int = 4) -> int:
    return 2 * ratio * width * width + ratio * width + width


def _norm(width: int) -> int:
    return 2 * width


def _block(width: int, cross: bool = False) -> int:
    parts = 3 if cross else 2
    return (parts - 1) * _attention(width) + _feedforward(width) + parts * _norm(width)


def _segmenter(n_layers: int, width: int, cells: int, patch: int, n_labels: int = 150, n_decoder: int = 2) -> int:
    patches = 3 * patch * patch * width + width
    encoder = patches + width + (cells + 1) * width + n_layers * _block(width) + _norm(width)
    decoder = width * width + width + n_labels * width + n_decoder * _block(width) + _norm(width)
    return encoder + decoder + 2 * width * width + _norm(n_labels)


def _joints(channels: int, n_joints: int) -> int:
    net = _convolution(channels, 48, 7) + 2 * _basic(48, 48) + _basic(48, 96) + _basic(96, 96)
    encoder = net + 96 * 192 + 192 + 3 * _block(192) + _norm(192)
    return encoder + n_joints * 192 + 4 * _block(192, cross=True) + _place(192)


def _place(width: int) -> int:
    return _norm(width) + 3 * (width * width + width) + 2 * width + 2


COUNTED: dict[str, int] = {
    "segmenter-ti16": _segmenter(12, 192, 32 * 32, 16),
    "segmenter-s16": _segmenter(12, 384, 32 * 32, 16),
    "segmenter-b16": _segmenter(12, 768, 32 * 32, 16),
    "segmenter-l16": _segmenter(24, 1024, 32 * 32, 16),
    "segmenter-mini": _segmenter(6, 192, 24 * 24, 8),
    "vitpose-mini": 3 * 64 * 192 + 192 + 257 * 192 + 6 * _block(192) + _norm(192) + 9 * 192 * 14 + 14,
    "keypoint-detr-96": _joints(1, 68),
    "keypoint-detr-128": _joints(3, 14),
    "keypoint-detr-vit-128": sum(
        (
            3 * 64 * 192 + 192 + 256 * 192 + 6 * _block(192) + _norm(192),
            14 * 192 + 4 * _block(192, cross=True) + _place(192),
        )
    ),
}
