"""The published sizes of the image classifiers, and those that are made for small images here."""

from __future__ import annotations

from typing import Any


def _resnet(depths: list[int], basic: bool = False) -> dict[str, Any]:
    widths = [64, 128, 256, 512] if basic else [256, 512, 1024, 2048]
    kind = "basic" if basic else "bottleneck"
    return {"depths": depths, "hidden_sizes": widths, "layer_type": kind, "num_labels": 1000}


def _deit(width: int, heads: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width, "num_labels": 1000}


_DEIT = ("DeiTForImageClassificationWithTeacher", "DeiTConfig")

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deit-ti16": (*_DEIT, _deit(192, 3)),
    "deit-s16": (*_DEIT, _deit(384, 6)),
    "deit-b16": (*_DEIT, _deit(768, 12)),
}


def _dinov2(layers: int, width: int, heads: int, **more: Any) -> dict[str, Any]:
    size = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {**size, "image_size": 518, "num_labels": 1000, "use_mask_token": False, **more}


PUBLISHED |= {
    name: ("Dinov2ForImageClassification", "Dinov2Config", size)
    for name, size in {
        "dinov2-s14": _dinov2(12, 384, 6),
        "dinov2-b14": _dinov2(12, 768, 12),
        "dinov2-l14": _dinov2(24, 1024, 16),
        "dinov2-g14": _dinov2(40, 1536, 24, use_swiglu_ffn=True),
    }.items()
}
PUBLISHED |= {
    name: ("ResNetForImageClassification", "ResNetConfig", size)
    for name, size in {
        "resnet-18": _resnet([2, 2, 2, 2], basic=True),
        "resnet-34": _resnet([3, 4, 6, 3], basic=True),
        "resnet-50": _resnet([3, 4, 6, 3]),
        "resnet-101": _resnet([3, 4, 23, 3]),
        "resnet-152": _resnet([3, 8, 36, 3]),
    }.items()
}


def _convolution(d_in: int, d_out: int, kernel: int) -> int:
    """Without a bias, and with the scale and the offset of its norm."""
    return d_in * d_out * kernel**2 + 2 * d_out


def _basic(d_in: int, d_out: int) -> int:
    shortcut = _convolution(d_in, d_out, 1) if d_in != d_out else 0
    return _convolution(d_in, d_out, 3) + _convolution(d_out, d_out, 3) + shortcut


def _bottleneck(d_in: int, d_out: int) -> int:
    inner = d_out // 4
    shortcut = _convolution(d_in, d_out, 1) if d_in != d_out else 0
    return _convolution(d_in, inner, 1) + _convolution(inner, inner, 3) + _convolution(inner, d_out, 1) + shortcut


def _linear(d_in: int, d_out: int) -> int:
    return d_in * d_out + d_out


def _vit(n_layers: int, width: int, hidden: int, patch: int, cells: int, labels: int = 10) -> int:
    """Blocks, final norm, `patch` numbers to a token, `cells` positions, classes."""
    block = 4 * _linear(width, width) + _linear(width, hidden) + _linear(hidden, width) + 4 * width
    return n_layers * block + 2 * width + _linear(patch, width) + cells * width + _linear(width, labels) * (labels > 0)


_R50 = sum(
    (
        _convolution(3, 64, 7),
        _bottleneck(64, 256) + 2 * _bottleneck(256, 256),
        _bottleneck(256, 512) + 3 * _bottleneck(512, 512),
        _bottleneck(512, 1024) + 8 * _bottleneck(1024, 1024),
    )
)
COUNTED: dict[str, int] = {
    "vit-lite": _vit(7, 256, 512, 4 * 4 * 3, 64) + 256,  # the query of the pool
    "vit-cifar": _vit(9, 192, 704, 4 * 4 * 3, 64) + 192,
    # class and distillation token with their positions, and a second classifier
    "deit-cifar": _vit(7, 256, 512, 4 * 4 * 3, 64 + 2) + 2 * 256 + _linear(256, 10),
    "hybrid-cifar": _vit(5, 256, 512, 2 * 2 * 128, 64)
    + 256
    + _convolution(3, 64, 3)
    + _basic(64, 64)
    + _basic(64, 128),
    # encoder without classes, with a class token and its place; decoder with its mask token; pixels
    "mae-cifar": _vit(7, 256, 512, 4 * 4 * 3, 64 + 2, 0) + _vit(2, 128, 256, 256, 64 + 2, 4 * 4 * 3),
    "hybrid-r50-b16": _R50 + _vit(12, 768, 3072, 1024, 197, 1000) + 768,
    "hybrid-r50-l16": _R50 + _vit(24, 1024, 4096, 1024, 197, 1000) + 1024,
    "resnet-cifar": sum(
        (
            _convolution(3, 64, 3),
            2 * _basic(64, 64),
            _basic(64, 128) + _basic(128, 128),
            _basic(128, 256) + 2 * _basic(256, 256),
            256 * 10 + 10,
        )
    ),
}
