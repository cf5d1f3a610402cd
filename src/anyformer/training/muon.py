"""Muon (Jordan et al. 2024): the matrices inside a model's blocks move along their momentum made orthogonal, so that no
direction of it outweighs the others; everything else moves as by AdamW.

A small ViT learned in fewer steps by it than by AdamW (docs/LOG.md), for a few products of small matrices a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
PACE = 20.0  # how many times the rate of all else is the rate of the matrices
TURNS = 5
CUBIC = (3.4445, -4.7750, 2.0315)  # of Newton and Schulz's iteration; these bring singular values to about 1 soonest
TURNED = "turned"  # of a group: are its parameters such matrices?


class Muon(torch.optim.AdamW):
    """Groups with "turned": true hold matrices [out, in] alone."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        every = self.param_groups
        self.param_groups = [group for group in every if not group[TURNED]]
        try:
            super().step()
        finally:
            self.param_groups = every
        for group in every:
            if group[TURNED]:
                self._turn(group)

    def _turn(self, group: dict[str, Any]) -> None:
        """Matrices of one shape together: one by one they would be too small for a GPU."""
        rate = PACE * group["lr"]
        for alike in _by_shape(parameter for parameter in group["params"] if parameter.grad is not None):
            gradients = [parameter.grad for parameter in alike if parameter.grad is not None]
            for parameter in alike:
                if "momentum" not in self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            moments = [self.state[parameter]["momentum"] for parameter in alike]
            torch._foreach_lerp_(moments, gradients, 1 - MOMENTUM)
            ahead = torch.stack(gradients).lerp(torch.stack(moments), MOMENTUM)
            rows, columns = ahead.shape[1:]
            moves = orthogonal(ahead).to(ahead.dtype) * (rate * max(1.0, rows / columns) ** 0.5)
            if group["weight_decay"]:
                torch._foreach_mul_(alike, 1 - rate * group["weight_decay"])
            torch._foreach_sub_(alike, list(moves.unbind()))


def orthogonal(matrices: Tensor) -> Tensor:
    """[n, rows, columns]: nearly the closest matrices whose singular values are all 1, in bfloat16 on a GPU."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    one, three, five = CUBIC
    for _ in range(TURNS):
        square = x @ x.transpose(1, 2)
        x = one * x + (three * square + five * square @ square) @ x
    return x.transpose(1, 2) if tall else x


def _by_shape(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    found: dict[tuple[int, ...], list[Tensor]] = {}
    for parameter in parameters:
        found.setdefault(tuple(parameter.shape), []).append(parameter)
    return list(found.values())
