"""Pixel prediction for the masked parts of a clip (VideoMAE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.inputs.video import from_tubelets, tubelets

# ImageNet statistics: clips are normalized by them, and predicted unnormalized.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class VideoPixelHead(Head):
    """Predicts masked tubelets; the loss is their squared error, optionally normalized by tubelet and channel."""

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
        """Return [B, T, C, H, W] from 0 to 1: predictions for masked tubelets, the clip elsewhere. If pixels are
        normalized, mean and standard deviation of each tubelet are taken from the clip.
        """
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
        """Undo the ImageNet normalization."""
        if self.n_channels != len(MEAN):
            return pixels
        mean, std = (torch.tensor(values).to(pixels).view(1, 1, -1, 1, 1) for values in (MEAN, STD))
        return pixels * std + mean

    def _patches(self, pixels: Tensor) -> Tensor:
        return tubelets(pixels, self.tubelet, channels_last=True).flatten(1, 3)

    def _statistics(self, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return [B, tokens, pixels, channels], and the mean and standard deviation of each channel."""
        each = patches.unflatten(2, (-1, self.n_channels))
        return each, each.mean(dim=2, keepdim=True), each.var(dim=2, keepdim=True).sqrt() + 1e-6
