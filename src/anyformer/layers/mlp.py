"""Small networks of linear layers: what heads predict coordinates with."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.linear import Linear


class ZeroLinear(Linear):
    """Zero-initialized linear layer: at first it changes nothing."""

    def reset(self, std: float) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class MLP(nn.ModuleList):
    """Linear layers of these widths with ReLU between them; with `zero`, the last one starts at zero."""

    def __init__(self, *widths: int, zero: bool = False) -> None:
        sizes = list(pairwise(widths))
        last = ZeroLinear(*sizes[-1]) if zero else Linear(*sizes[-1])
        super().__init__([*(Linear(*size) for size in sizes[:-1]), last])

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self
        for layer in hidden:
            x = F.relu(layer(x))
        return last(x)
