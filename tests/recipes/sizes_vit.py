"""The published sizes of the picture classifiers, and those that are made for small pictures here."""

from __future__ import annotations

from typing import Any


def _resnet(depths: list[int], basic: bool = False) -> dict[str, Any]:
    widths = [64, 128, 256, 512] if basic else [256, 512, 1024, 2048]
    kind = "basic" if basic else "bottleneck"
    return {"depths": depths, "hidden_sizes": widths, "layer_type": kind, "num_labels": 1000}


PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
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


COUNTED: dict[str, int] = {
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
