"""Pixels of the parts of a clip that were hidden (VideoMAE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.inputs.video import from_tubelets, tubelets

# Of ImageNet's pixels: clips come normalized by these, and are predicted as they were before.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VideoPixelHead(Head):
    """The loss is the squared error of the hidden tubelets' pixels, normalized by tubelet and channel or not."""

    def __init__(self, d_model: int, tubelet: tuple[int, ...], n_channels: int, normalize: bool, stage: str) -> None:
        super().__init__(stage)
        self.tubelet, self.n_channels, self.normalize = tubelet, n_channels, normalize
        self.pixels = Linear(d_model, tubelet[0] * tubelet[1] * tubelet[2] * n_channels)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        hidden = run.extras["hidden"]
        count = int(hidden[0].sum())
        logits = self.pixels(run.padded(self.stage)[:, -count:])
        pixels = run.tensor("pixel_values")
        assert pixels is not None
        wanted = self.target(pixels.to(logits.dtype))
        wanted = wanted[hidden].view(len(hidden), count, -1)
        return {"loss": (logits - wanted).square().mean(), "logits": logits}

    def target(self, pixels: Tensor) -> Tensor:
        patches = self._patches(self.denormalize(pixels))
        if not self.normalize:
            return patches
        each, mean, spread = self._statistics(patches)
        return ((each - mean) / spread).flatten(2)

    def reconstruct(self, logits: Tensor, pixels: Tensor, hidden: Tensor) -> Tensor:
        """[B, T, C, H, W] from 0 to 1: what was predicted where tubelets were hidden, and the clip elsewhere. Where
        pixels are normalized, brightness and contrast of each tubelet are the clip's own: the model never says them."""
        plain = self.denormalize(pixels)
        patches = self._patches(plain).clone()
        if self.normalize:
            _, mean, spread = self._statistics(patches)
            shape = (len(hidden), -1, 1, self.n_channels)
            mean, spread = (one[hidden].view(shape) for one in (mean, spread))
            logits = (logits.unflatten(2, (-1, self.n_channels)) * spread + mean).flatten(2)
        patches[hidden] = logits.flatten(0, 1)
        _, height, width = self.tubelet
        grid = (-1, plain.shape[3] // height, plain.shape[4] // width)
        return from_tubelets(patches.unflatten(1, grid), self.tubelet, self.n_channels)

    def denormalize(self, pixels: Tensor) -> Tensor:
        """As they were before they were normalized."""
        if self.n_channels != len(MEAN):
            return pixels
        mean, std = (torch.tensor(values).to(pixels).view(1, 1, -1, 1, 1) for values in (MEAN, STD))
        return pixels * std + mean

    def _patches(self, pixels: Tensor) -> Tensor:
        return tubelets(pixels, self.tubelet, channels_last=True).flatten(1, 3)

    def _statistics(self, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, tokens, pixels, channels], and the mean and spread of each channel."""
        each = patches.unflatten(2, (-1, self.n_channels))
        return each, each.mean(dim=2, keepdim=True), each.var(dim=2, keepdim=True).sqrt() + 1e-6
