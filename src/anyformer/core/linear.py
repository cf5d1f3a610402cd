"""Linear layers. Query, key and value stay addressable where one matrix holds them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """y = W x + b. `residual` marks a layer that writes into the residual stream, for its initialization."""

    quantized = False  # whether its weights are rounded and gone

    def __init__(self, d_in: int, d_out: int, bias: bool = True, residual: bool = False) -> None:
        super().__init__(d_in, d_out, bias)
        self.residual = residual

    def reset_parameters(self) -> None:
        """Draw weights as nn.Linear does. Models are built on the meta device, and drawn as a whole by `initialize`."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`bias` replaces the layer's own, for a head that keeps it elsewhere."""
        return F.linear(x, self.weight, self.bias if bias is None else bias)


class FusedLinear(Linear):
    """Several layers over one input, stored as one matrix: FusedLinear(512, {"query": 512, "key": 64, "value": 64}).

    Calling it returns one tensor, the results side by side, to be split by `widths`; with `role`, one of them alone.
    """

    def __init__(self, d_in: int, roles: dict[str, int], bias: bool = True) -> None:
        super().__init__(d_in, sum(roles.values()), bias)
        self.roles, self.widths = roles, list(roles.values())

    def forward(self, x: Tensor, role: str | None = None) -> Tensor:  # type: ignore[override]
        if role is None:
            return super().forward(x)
        rows = self.slice(role)
        return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])

    def slice(self, role: str) -> slice:
        """The rows of the matrix that belong to a role."""
        names = list(self.roles)
        start = sum(self.widths[: names.index(role)])
        return slice(start, start + self.roles[role])
