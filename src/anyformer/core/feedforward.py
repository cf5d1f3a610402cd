"""The position-wise network: widen, bend, narrow; plain or gated."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.linear import FusedLinear, Linear
from anyformer.core.taps import NO_TAPS
from anyformer.errors import nearest
from anyformer.tokens import Packing


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Settings):
    d_model: int
    d_hidden: int
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0  # between the two layers

    def check(self) -> None:
        known = f"{', '.join(ACTIVATIONS)}.{nearest(self.activation, ACTIVATIONS)}"
        self.require(self.activation in ACTIVATIONS, f'activation "{self.activation}" is not one of {known}')


class FeedForward(nn.Module):
    """W₂ σ(W₁ x), or gated: W₂ (σ(W_g x) ⊙ W₁ x) (Shazeer 2020)."""

    def __init__(self, config: FeedForwardConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        if config.gated:  # "up" names the second half of the matrix, so the whole needs another name
            self.gate_up = FusedLinear(config.d_model, {"gate": config.d_hidden, "up": config.d_hidden}, config.bias)
        else:
            self.up = Linear(config.d_model, config.d_hidden, config.bias)
        self.down = Linear(config.d_hidden, config.d_model, config.bias, residual=True)
        self.activation = ACTIVATIONS[config.activation]

    def forward(
        self, x: Tensor, packing: Packing | None = None, norm: nn.Module | None = None, add: Tensor | None = None
    ) -> Tensor:
        """`packing`, where the tokens are packed, lets a watcher see them padded; `norm` comes first, `add` last."""
        if self.config.gated:
            gate, up = self.gate_up(x, norm)
            hidden = self.activation(gate) * up
        else:
            hidden = self.up(x, norm, self.config.activation)
        hidden = self.taps.record("hidden", hidden, packing)
        hidden = F.dropout(hidden, self.config.dropout) if self.training else hidden
        return self.down(hidden, add=add)
