"""Weights stored in fewer bits than they are used in: bfloat16, or 8 bits with a scale for each row.

Only the files are smaller; a model that is loaded from them computes in the type that its config names. In 8 bits a row
is round(row / s), s its largest number / 127, and stands beside its scales: "x.weight" and "x.weight.scale".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from anyformer.checkpoints.files import StoredTensor, read_tensors

Kind = Literal["bf16", "int8", "float32"]
SCALE = ".scale"
SMALL = 4096  # numbers; what has fewer, norms and biases, stays as it is where the rest goes to 8 bits


def to_low_precision(tensors: Mapping[str, Tensor], kind: Kind) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or kind == "float32":
            found[name] = tensor
        elif kind == "bf16":
            found[name] = tensor.to(torch.bfloat16)
        elif tensor.dim() < 2 or tensor.numel() < SMALL:
            found[name] = tensor.float()
        else:
            found[name], found[name + SCALE] = to_int8(tensor)
    return found


def to_int8(tensor: Tensor) -> tuple[Tensor, Tensor]:
    rows = tensor.float().flatten(1)
    scale = rows.abs().amax(dim=1).clamp(min=1e-30) / 127
    return (rows / scale[:, None]).round().to(torch.int8).view(tensor.shape), scale


def scales_of(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The scales in a file, by the name of the tensor that they belong to."""
    return {
        name.removesuffix(SCALE): one
        for name, one in stored.items()
        if name.endswith(SCALE)
        and name.removesuffix(SCALE) in stored
        and stored[name.removesuffix(SCALE)].dtype == torch.int8
    }


def dequantize(places: Mapping[str, Tensor], scales: Mapping[str, StoredTensor]) -> None:
    """Give whole numbers, copied from a file, the size that they stand for."""
    by_stored = {one: name for name, one in scales.items()}
    with torch.no_grad():
        for one, scale in read_tensors(by_stored):
            target = places[by_stored[one]]
            target.mul_(scale.to(target).view(-1, *[1] * (target.dim() - 1)))
