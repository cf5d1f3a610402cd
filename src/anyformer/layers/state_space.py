"""The selective state-space mixer (Gu and Dao 2023): a linear recurrence whose coefficients depend on the token.

    h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t u_t,    y_t = C_t·h_t + D u_t

Training computes all h_t at once with a parallel scan. Decoding keeps h and the last inputs of the convolution, which
takes constant memory for any length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.cache import Cache
from anyformer.core.linear import FusedLinear, Linear
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.layers.right_padded import RightPadded

# Range of initial step sizes Δ, sampled uniformly on a logarithmic scale (§E.2).
STEP_LOW, STEP_HIGH, STEP_FLOOR = 0.001, 0.1, 1e-4


@dataclass(frozen=True, kw_only=True)
class SelectiveStateSpaceConfig(Settings):
    d_model: int
    d_inner: int
    d_state: int = 16  # size of the state of each of the d_inner channels
    rank: int  # of the projection from a token to its step sizes
    kernel: int = 4  # width of the convolution before the recurrence
    bias: bool = False  # of the input and output projections
    conv_bias: bool = True
    activation: str = "silu"


class SelectiveStateSpace(nn.Module):
    tap_points = ("output",)
    crosses = False

    def __init__(self, config: SelectiveStateSpaceConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = True
        inner = config.d_inner
        self.enter = FusedLinear(config.d_model, {"input": inner, "gate": inner}, config.bias)
        self.conv = DepthwiseConv1d(inner, config.kernel, config.conv_bias)
        self.select = FusedLinear(
            inner, {"step": config.rank, "write": config.d_state, "read": config.d_state}, bias=False
        )
        self.recurrence = SelectiveScan(inner, config.d_state, config.rank)
        self.out = Linear(inner, config.d_model, config.bias, residual=True)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        if not tokens.x.shape[-2]:
            return tokens.x  # no tokens
        rows = RightPadded.from_tokens(tokens)
        entered, gate = self.enter(rows.x).split_with_sizes(self.enter.widths, dim=-1)
        entry = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        rows_in = RightPadded(_blank(entered, rows.real), rows.packing, mask=rows.mask)
        mixed, window = self.conv(rows_in, entry.get("window"))
        u = self.activation(mixed)
        step, write, read = self.select(u).split_with_sizes(self.select.widths, dim=-1)
        y, last = self.recurrence(u, step, write, read, rows.real, entry.get("state"))
        entry.update(window=window, state=last)
        out = self.out(y.to(gate.dtype) * F.silu(gate))
        return self.taps.record("output", rows.restore(out), tokens.packing)


class DepthwiseConv1d(nn.Module):
    """A causal depthwise convolution."""

    def __init__(self, width: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, kernel))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def reset(self, std: float) -> None:
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, rows: RightPadded, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the result [B, T, d] and the inputs that the next step needs [B, kernel - 1, d]."""
        width, kernel = self.weight.shape
        if past is None:
            past = rows.x.new_zeros(rows.x.shape[0], kernel - 1, width)
        everything, window = rows.extend(past)
        mixed = F.conv1d(everything.transpose(1, 2), self.weight.unsqueeze(1), self.bias, groups=width)
        return mixed.transpose(1, 2), window


class SelectiveScan(nn.Module):
    """The recurrence: A and D are parameters; the step Δ, B (write) and C (read) are computed from the token."""

    def __init__(self, width: int, d_state: int, rank: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.empty(width, d_state))  # log(-A)
        self.skip = nn.Parameter(torch.empty(width))  # D
        self.step_weight = nn.Parameter(torch.empty(width, rank))
        self.step_bias = nn.Parameter(torch.empty(width))

    def reset(self, std: float) -> None:
        width, d_state = self.decay.shape
        rates = torch.arange(1, d_state + 1, dtype=self.decay.dtype, device=self.decay.device)
        self.decay.data.copy_(rates.log().expand(width, -1))  # S4D-Real: A_n = -(n + 1)
        nn.init.ones_(self.skip)
        bound = self.step_weight.shape[1] ** -0.5
        nn.init.uniform_(self.step_weight, -bound, bound)
        even = torch.rand_like(self.step_bias)
        steps = torch.exp(even * math.log(STEP_HIGH / STEP_LOW) + math.log(STEP_LOW)).clamp(min=STEP_FLOOR)
        self.step_bias.data.copy_(steps + torch.log(-torch.expm1(-steps)))  # inverse softplus of the steps

    def forward(
        self, u: Tensor, step: Tensor, write: Tensor, read: Tensor, real: Tensor | None, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """u [B, T, d] -> the outputs [B, T, d] and the state after the last real token [B, d, n]."""
        precise = torch.float32 if u.dtype in (torch.float16, torch.bfloat16) else u.dtype
        step = F.softplus(F.linear(step, self.step_weight).to(precise) + self.step_bias.to(precise))  # Δ [B, T, d]
        if real is not None:  # a step of size 0 keeps the state
            step = step.masked_fill(~real.unsqueeze(-1), 0.0)
        keep = torch.exp(step.unsqueeze(-1) * -self.decay.to(precise).exp())  # [B, T, d, n]
        add = (step * u.to(precise)).unsqueeze(-1) * write.to(precise).unsqueeze(-2)
        states = scan(keep, add, before)
        y = (states @ read.to(precise).unsqueeze(-1)).squeeze(-1) + u.to(precise) * self.skip.to(precise)
        return y, states[:, -1]


def scan(keep: Tensor, add: Tensor, before: Tensor | None = None) -> Tensor:
    """All states h_t = keep_t h_{t-1} + add_t along dimension 1, starting from `before` (or zeros), in parallel."""
    if before is not None:
        first = torch.addcmul(add[:, :1], keep[:, :1], before.unsqueeze(1))
        add = first if add.shape[1] == 1 else torch.cat([first, add[:, 1:]], dim=1)
    if add.shape[1] == 1:
        return add
    states: Tensor = _Scan.apply(keep, add)
    return states


def _pairwise(keep: Tensor, add: Tensor) -> Tensor:
    """The scan by halving (Blelloch 1990): combine neighbors, scan half as many pairs, and fill in between.

    Its work is proportional to T, in about 2·log2(T) sequential steps. It does not divide, so nothing overflows.
    """
    length = add.shape[1]
    if length == 1:
        return add
    even, odd = slice(0, length - 1, 2), slice(1, length, 2)
    pairs = _pairwise(keep[:, even] * keep[:, odd], torch.addcmul(add[:, odd], keep[:, odd], add[:, even]))
    states = torch.empty_like(add)
    states[:, odd] = pairs
    states[:, 0] = add[:, 0]
    later = slice(2, length, 2)
    n = add[:, later].shape[1]
    states[:, later] = torch.addcmul(add[:, later], keep[:, later], pairs[:, :n])
    return states


class _Scan(torch.autograd.Function):
    """A scan whose gradient is the same scan, backwards: g_t = dL/dh_t + keep_{t+1} g_{t+1}."""

    generate_vmap_rule = True  # for torch.func

    @staticmethod
    def forward(keep: Tensor, add: Tensor) -> Tensor:
        return _pairwise(keep, add)

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        keep, states = ctx.saved_tensors  # type: ignore[attr-defined]
        following = torch.cat([torch.zeros_like(keep[:, :1]), keep[:, 1:].flip(1)], dim=1)
        reached = _pairwise(following, grad.flip(1)).flip(1)
        earlier = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], dim=1)
        return reached * earlier, reached


def _blank(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None else x.masked_fill(~real.unsqueeze(-1), 0.0)
