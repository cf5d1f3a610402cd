"""How weights move: Adam as the Transformer paper sets it, its warm-up, and decay only where it belongs."""

from __future__ import annotations

import math

import torch
from torch import nn

from anyformer.core.linear import Linear
from anyformer.inputs.text import Embedding

BETAS, EPS = (0.9, 0.98), 1e-9  # Vaswani et al. 2017, §5.3


def adamw(model: nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); with weight_decay 0 it is the paper's Adam."""
    return torch.optim.AdamW(decay_groups(model, weight_decay), lr=lr, betas=BETAS, eps=EPS, fused=True)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; norms, biases, embeddings and positions do not, nor does an output matrix tied to embeddings."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    matrices = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (Linear, nn.Conv2d)) and id(module.weight) not in tables
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if id(parameter) in matrices]
    others = [parameter for parameter in trained if id(parameter) not in matrices]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def inverse_sqrt(step: int, peak: float, warmup: int) -> float:
    """The rate at a step, from 1: up in a straight line to `peak` at `warmup`, then down with 1/√step.

    With peak = paper_peak(d_model, warmup) it is the paper's d_model^-½ · min(step^-½, step · warmup^-1½).
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))


def paper_peak(d_model: int, warmup: int) -> float:
    return 1.0 / math.sqrt(d_model * warmup)
