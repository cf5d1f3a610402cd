"""Pixels of the parts of a clip that were hidden (VideoMAE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.heads.base import Head
from anyformer.inputs.video import tubelets
from anyformer.run import Run

# Of ImageNet's pixels: clips come normalised by these, and are predicted as they were before.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TubesHead(Head):
    """The loss is the squared error of the hidden tubelets' pixels, normalised by tubelet and channel or not."""

    def __init__(self, d_model: int, tubelet: tuple[int, ...], n_channels: int, normalise: bool, reads: str) -> None:
        super().__init__(reads)
        self.tubelet, self.n_channels, self.normalise = tubelet, n_channels, normalise
        self.pixels = Linear(d_model, tubelet[0] * tubelet[1] * tubelet[2] * n_channels)

    def forward(self, run: Run) -> dict[str, Any]:
        hidden = run.extras["hidden"]
        count = int(hidden[0].sum())
        logits = self.pixels(run.padded(self.reads)[:, -count:])
        pixels = run.tensor("pixel_values")
        assert pixels is not None
        wanted = self.target(pixels.to(logits.dtype))
        wanted = wanted[hidden].view(len(hidden), count, -1)
        return {"loss": (logits - wanted).square().mean(), "logits": logits}

    def target(self, pixels: Tensor) -> Tensor:
        if self.n_channels == len(MEAN):
            mean, std = (torch.tensor(values).to(pixels).view(1, 1, -1, 1, 1) for values in (MEAN, STD))
            pixels = pixels * std + mean
        patches = tubelets(pixels, self.tubelet, channels_last=True).flatten(1, 3)
        if not self.normalise:
            return patches
        each = patches.unflatten(2, (-1, self.n_channels))
        mean, var = each.mean(dim=2, keepdim=True), each.var(dim=2, keepdim=True)
        return ((each - mean) / (var.sqrt() + 1e-6)).flatten(2)
