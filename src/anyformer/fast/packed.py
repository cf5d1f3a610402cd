"""Matrix products on a CPU with weights in oneDNN's layout: twice the bandwidth at one row, for a copy of the
weights."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from anyformer.core.feedforward import FeedForward
from anyformer.core.host import is_capturing
from anyformer.core.linear import FusedLinear, Linear
from anyformer.fast.cpu_gemm import EPILOGUES, PackedWeight
from anyformer.fast.device import is_hooked

SMALL = 2**20  # number of weights below which a product of one row is faster without packing


class PackedLinear(Linear):
    """A linear layer that keeps a packed copy of its matrix for inference in float32. A changed matrix is packed
    again."""

    packed_rows = 1024  # the number of rows that the layout is chosen for
    on_use = False  # whether to pack at the first product
    _packed: PackedWeight | None = None

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        packed = self.layout(x)
        if packed is None:
            return super().forward(x, bias)
        return packed(x, self.bias if bias is None else bias)

    def layout(self, x: Tensor) -> PackedWeight | None:
        """The packed matrix if it pays for this input, else None. Its fixed cost is too high for one row of a small
        matrix."""
        if torch.is_grad_enabled() or x.dtype != torch.float32 or not x.is_cpu:
            return None
        if self._packed is None and not (self.on_use and not self.training):
            return None
        if x.numel() <= x.shape[-1] and self.weight.numel() <= SMALL:
            return None
        if is_capturing(x) or "parametrizations" in self._modules:
            return None
        if self._packed is None or not self._packed.holds(self.weight):
            self.pack(self.packed_rows)
        return self._packed

    def pack(self, rows: int) -> None:
        suits = PackedWeight.suits(self.weight) and "parametrizations" not in self._modules
        self.packed_rows, self._packed = rows, PackedWeight(self.weight, rows) if suits else None

    @property
    def packed(self) -> bool:
        return self._packed is not None and self._packed.holds(self.weight)

    def train(self, mode: bool = True) -> Self:
        if self._packed is not None:
            self._packed.expire()
        self._packed = None if mode else self._packed
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._packed = None  # device or dtype changed
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}  # a copy of the module packs its own weights


class PackedFusedLinear(FusedLinear, PackedLinear):
    def forward(self, x: Tensor, role: str | None = None) -> Tensor:  # type: ignore[override]
        return PackedLinear.forward(self, x) if role is None else FusedLinear.forward(self, x, role)


class PackedFeedForward(FeedForward):
    """Feed-forward network whose activation is fused with the first product."""

    def hidden(self, x: Tensor) -> Tensor:
        up = None if self.config.gated else self.up
        if not isinstance(up, PackedLinear) or self.config.activation not in EPILOGUES or is_hooked(up):
            return super().hidden(x)
        packed = up.layout(x)
        return super().hidden(x) if packed is None else packed(x, up.bias, self.config.activation)
