"""Matrices quantized to int8, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import FusedLinear, Linear
from anyformer.errors import ConfigError, InputError, nearest
from anyformer.fast.cpu_gemm import Int8Weight
from anyformer.fast.packed import PackedFusedLinear, PackedLinear
from anyformer.fast.swap import restore, swap

WEIGHTS = ("int8",)  # supported types of quantized weights


class Int8Linear(Linear):
    """A linear layer that keeps the int8 matrix only, without the original weights."""

    quantized = True
    _int8: Int8Weight

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._int8(x, self.bias if bias is None else bias)

    def _save_to_state_dict(self, *args: Any, **options: Any) -> None:
        raise self._lost()

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        raise self._lost()

    def _lost(self) -> InputError:
        return InputError(
            "The matrices of this model are rounded to int8, and their weights are gone; for a state_dict load the"
            ' model without weights="int8".'
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, int8"


class Int8FusedLinear(FusedLinear, Int8Linear):
    def forward(self, x: Tensor, role: str | None = None) -> Tensor:  # type: ignore[override]
        y = Int8Linear.forward(self, x)
        return y if role is None else y[..., self.slice(role)]


def quantize(model: Any, weights: str) -> None:
    """Quantize the matrices in the stages' stacks and in the heads."""
    if weights not in WEIGHTS:
        known = f"{', '.join(WEIGHTS)}.{nearest(weights, WEIGHTS)}"
        raise ConfigError(f'weights can be {known} "{weights}" is something else.')
    if model.device.type != "cpu" or model.dtype != torch.float32:
        kind = str(model.dtype).removeprefix("torch.")
        raise ConfigError(f"{weights} weights are for float32 models on a CPU; this is {kind} on {model.device}.")
    for part in (*(stage.stack.blocks for stage in model.stages.values() if stage.stack), *model.heads.values()):
        for module in part.modules():
            if type(module) in (PackedLinear, PackedFusedLinear):
                restore(module)
                module.__dict__.pop("_packed", None)  # it keeps a copy of the weights
            if type(module) in (Linear, FusedLinear):
                module._int8 = Int8Weight(module.weight.detach())
                module.register_parameter("weight", None)
                swap(module, Int8Linear if type(module) is Linear else Int8FusedLinear)
