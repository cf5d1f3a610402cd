"""How fast a model trains against what its device could do, and how much memory that takes."""

from __future__ import annotations

import sys

import torch

from anyformer.core.linear import Linear
from anyformer.inputs.text import Embedding
from anyformer.model import Model

# Dense matrix products in bfloat16 (float16 where there is none), multiplications and additions a second: data sheets.
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
    "T4": 65e12,
    "4090": 165e12,
    "3090": 71e12,
}


def flops_per_token(model: Model) -> float:
    """6 for each weight that multiplies: 2 forward, 4 backward (Kaplan et al. 2020). A token passes one stage, so the
    weights of all of them are shared out; what attention multiplies by itself is left out.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    weights: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, (Linear, torch.nn.Conv2d)):
            weights[id(module.weight)] = module.weight.numel()
    heads = sum(size for key, size in weights.items() if key in tables)  # a table that is only read multiplies nothing
    body = sum(size for key, size in weights.items() if key not in tables)
    return 6.0 * (body / max(len(model.stages), 1) + heads)


def peak_flops(device: torch.device) -> float | None:
    """What the device could do; None where that is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for part, value in PEAKS.items() if part in name), None)


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
