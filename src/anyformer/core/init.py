"""Initialization of weights, in one place for all families."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.wrapper import innermost

SMALLEST = 1e-30  # minimum standard deviation, since PyTorch's truncated normal distribution divides by it


@dataclass(frozen=True, kw_only=True)
class InitConfig(Settings):
    linear: Literal["normal", "xavier", "fan_in"] = "normal"  # "fan_in": std 1 / √(inputs)
    std: float = 0.02
    embedding_std: float | None = None  # None: std
    # The std of layers that write to the residual stream is divided by √(this) (GPT-2: 2 per layer).
    residual_depth: int = 0


def initialize(model: nn.Module, config: InitConfig) -> None:
    """Initialize every parameter of `model`; a tied one as its first use, the input table."""
    drawn: dict[int, Tensor] = {}
    for module in model.modules():
        if innermost(module) is not module:
            continue  # a wrapper shares the parameters of the wrapped module
        own = {id(parameter): parameter.data for parameter in module._parameters.values() if parameter is not None}
        if own and own.keys() <= drawn.keys():
            continue
        tied = [(data, data.clone()) for key, data in own.items() if key in drawn]
        _draw(module, config)
        for data, first in tied:
            data.copy_(first)
        drawn |= own


def _draw(module: nn.Module, config: InitConfig) -> None:
    if hasattr(module, "reset"):  # tables, embeddings and single tokens have their own initialization
        std = config.std if config.embedding_std is None else config.embedding_std
        module.reset(std or SMALLEST)  # type: ignore[operator]
    elif isinstance(module, Linear):
        _linear(module, config)
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.RNNBase)):
        module.reset_parameters()
    elif isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _linear(module: Linear, config: InitConfig) -> None:
    if config.linear == "xavier":
        nn.init.xavier_uniform_(module.weight)
    else:
        std = module.weight.shape[1] ** -0.5 if config.linear == "fan_in" else config.std
        shrink = math.sqrt(config.residual_depth) if module.residual and config.residual_depth else 1.0
        nn.init.normal_(module.weight, std=std / shrink)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def materialize(model: nn.Module, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> None:
    """Allocate uninitialized memory for a model built on the meta device; tied parameters stay tied."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, old in list(store.items()):
                if old is None or not old.is_meta:
                    continue
                if id(old) not in made:
                    kind = dtype if dtype is not None and old.is_floating_point() else old.dtype
                    empty = torch.empty(old.shape, device=device, dtype=kind)
                    made[id(old)] = nn.Parameter(empty, old.requires_grad) if isinstance(old, nn.Parameter) else empty
                setattr(module, name, made[id(old)])  # PyTorch's recurrent layers must be updated
