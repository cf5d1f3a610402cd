"""The position-wise network: W₂ σ(W₁ x), or gated: W₂ (σ(W_g x) ⊙ W₁ x) (Shazeer 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.cache import Cache
from anyformer.core.linear import FusedLinear, Linear
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.errors import nearest


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Settings):
    """The widths of a position-wise network and what stands between its two layers."""

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
    """A network that is applied to each token alone: two linear layers with an activation, or three if it is gated."""

    tap_points = ("hidden",)
    crosses = False
    has_cache = False

    def __init__(self, config: FeedForwardConfig) -> None:
        super().__init__()
        self.config, self.taps = config, NO_TAPS
        if config.gated:
            self.gate_up = FusedLinear(config.d_model, {"gate": config.d_hidden, "up": config.d_hidden}, config.bias)
        else:
            self.up = Linear(config.d_model, config.d_hidden, config.bias)
        self.down = Linear(config.d_hidden, config.d_model, config.bias, residual=True)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, tokens: Tokens | Tensor, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        """[B, T, d_model]. Plain vectors [B, T, d_model] may stand for tokens."""
        tokens = tokens if isinstance(tokens, Tokens) else Tokens(tokens)
        hidden = self.taps.record("hidden", self.hidden(tokens.x), tokens.packing)  # [B, T, d_hidden]
        hidden = F.dropout(hidden, self.config.dropout) if self.training else hidden
        return self.down(hidden)

    def hidden(self, x: Tensor) -> Tensor:
        if not self.config.gated:
            return self.activation(self.up(x))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.activation(gate) * up
