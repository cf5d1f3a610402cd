"""The state-space mixer: the parallel scan is the recurrence, forwards and backwards, and padding does not move it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.core.tokens import Tokens
from anyformer.layers.state_space import SelectiveStateSpace, SelectiveStateSpaceConfig, scan
from tests.batches import build


def _loop(keep: Tensor, add: Tensor, before: Tensor | None) -> Tensor:
    state = torch.zeros_like(add[:, 0]) if before is None else before
    states = []
    for t in range(add.shape[1]):
        state = keep[:, t] * state + add[:, t]
        states.append(state)
    return torch.stack(states, dim=1)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 16, 31, 100])
@pytest.mark.parametrize("started", [False, True])
def test_scan_is_the_recurrence(length: int, started: bool) -> None:
    """Every state and every gradient equal those of the loop."""
    keep = torch.rand(2, length, 3, 4, dtype=torch.float64).requires_grad_()
    add = torch.randn(2, length, 3, 4, dtype=torch.float64).requires_grad_()
    before = torch.randn(2, 3, 4, dtype=torch.float64).requires_grad_() if started else None
    inputs = [keep, add, *([before] if before is not None else [])]
    ours, theirs = scan(keep, add, before), _loop(keep, add, before)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    wish = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, wish, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(theirs, inputs, wish, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_scan_survives_what_forgets_at_once() -> None:
    """Coefficients of zero, as a long step gives them, lead to no division by zero and no infinity."""
    keep, add = torch.zeros(1, 50, 1, 1), torch.randn(1, 50, 1, 1)
    assert torch.equal(scan(keep, add), add)


def _mixer(bias: bool = True) -> SelectiveStateSpace:
    mixer = SelectiveStateSpace(SelectiveStateSpaceConfig(d_model=6, d_inner=8, d_state=3, rank=2, bias=bias)).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def test_mixer_is_its_formula() -> None:
    """Token by token with plain Python sums, from the paper's equations."""
    mixer = _mixer()
    x = torch.randn(1, 5, 6, dtype=torch.float64)
    weights = {name: p.tolist() for name, p in mixer.named_parameters()}
    entered = (x[0] @ mixer.enter.weight.T + mixer.enter.bias).tolist()
    sigmoid = lambda v: 1 / (1 + math.exp(-v))  # noqa: E731
    state = [[0.0] * 3 for _ in range(8)]
    for t in range(5):
        u = []
        for c in range(8):
            total = weights["conv.bias"][c]
            for k in range(4):
                at = t - 3 + k
                total += weights["conv.weight"][c][k] * entered[at][c] if at >= 0 else 0.0
            u.append(total * sigmoid(total))
        chosen = [sum(w * v for w, v in zip(row, u, strict=True)) for row in weights["select.weight"]]
        rank, write, read = chosen[:2], chosen[2:5], chosen[5:]
        gated = []
        for c in range(8):
            raw = sum(w * v for w, v in zip(weights["recurrence.step_weight"][c], rank, strict=True))
            step = math.log1p(math.exp(raw + weights["recurrence.step_bias"][c]))
            for n in range(3):
                decay = math.exp(-step * math.exp(weights["recurrence.decay"][c][n]))
                state[c][n] = decay * state[c][n] + step * write[n] * u[c]
            y = sum(r * h for r, h in zip(read, state[c], strict=True)) + weights["recurrence.skip"][c] * u[c]
            gate = entered[t][8 + c]
            gated.append(y * gate * sigmoid(gate))
        out = [
            sum(w * g for w, g in zip(row, gated, strict=True)) + b
            for row, b in zip(weights["out.weight"], weights["out.bias"], strict=True)
        ]
        torch.testing.assert_close(mixer(Tokens(x))[0, t], torch.tensor(out, dtype=torch.float64))


@pytest.mark.parametrize("mask", ["0011111", "1111100", "1011011", "0110100"])
@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_padding_does_not_move_the_state(mask: str, cut: int) -> None:
    """Masked on the left, on the right or in between, in one go or in two: what the real tokens get alone."""
    mixer = _mixer()
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    real = torch.tensor([[flag == "1" for flag in mask]])
    alone = mixer(Tokens(x[:, real[0]]))[0]
    state = Cache()
    pieces = [
        mixer(Tokens(x[:, at], real[:, at]), None, state) for at in (slice(0, cut), slice(cut, 7)) if x[:, at].numel()
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1)[0, real[0]], alone, rtol=0, atol=1e-12)


def test_the_state_does_not_grow() -> None:
    """Decoding keeps the same memory after 3 tokens and after 300."""
    model = build("mamba-tiny")
    sizes = []
    with torch.no_grad():
        state = model(input_ids=torch.randint(1, 250, (1, 3)), use_cache=True).past_key_values
        for length in (3, 300):
            while state.length < length:
                model(input_ids=torch.randint(1, 250, (1, 33)), past_key_values=state)
            sizes.append(sum(x.numel() for layer in state.layers.values() for x in layer.values()))
    assert sizes[0] == sizes[1] > 0
