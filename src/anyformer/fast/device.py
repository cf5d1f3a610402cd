"""Properties of devices and modules that decide whether a kernel can be used."""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

HAS_TRITON = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
HALVES = (torch.float16, torch.bfloat16)
MOST_PARTS = 3  # the largest number of parts of a fused product whose gradients a kernel can join


def is_hooked(module: nn.Module) -> bool:
    """Whether the module has hooks, which need its own input and output: kernels must not skip them."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
