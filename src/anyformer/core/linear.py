"""The only maker of projections. Query, key and value stay addressable where they are stored as one matrix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """y = W x + b. `residual` marks a projection that writes into the residual stream, for its initialisation."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True, residual: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} -> {self.weight.shape[0]}, bias={self.bias is not None}"


class Fused(Linear):
    """Several projections of one input stored as one matrix: one product instead of three.

    Fused(512, {"query": 512, "key": 64, "value": 64})(x) -> the three results
    """

    def __init__(self, d_in: int, roles: dict[str, int], bias: bool = True) -> None:
        super().__init__(d_in, sum(roles.values()), bias)
        self.roles = roles

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return super().forward(x).split(list(self.roles.values()), dim=-1)

    def slice(self, role: str) -> slice:
        """The rows of the matrix that belong to a role."""
        start = 0
        for name, width in self.roles.items():
            if name == role:
                return slice(start, start + width)
            start += width
        raise KeyError(role)

    def apart(self, role: str, x: Tensor) -> Tensor:
        """One role alone, for inputs that differ (DETR adds positions to queries and keys, not to values)."""
        rows = self.slice(role)
        return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])
