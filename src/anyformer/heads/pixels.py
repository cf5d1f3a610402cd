"""Pixels of each patch (MAE)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.heads.base import Head
from anyformer.inputs.image import patchify
from anyformer.run import Run


class PixelHead(Head):
    """Predicts the dropped patches; the loss is the squared error there, of pixels or of pixels normalised by patch."""

    def __init__(self, d_model: int, patch_size: tuple[int, int], n_channels: int, normalise: bool, reads: str) -> None:
        super().__init__(reads)
        self.patch_size, self.normalise = patch_size, normalise
        self.pixels = Linear(d_model, patch_size[0] * patch_size[1] * n_channels)

    def forward(self, run: Run) -> dict[str, Any]:
        logits = self.pixels(run.padded(self.reads)[:, 1:])
        pixels = run.tensor("pixel_values")
        assert pixels is not None
        mask = run.extras["mask"]
        error = (logits - self.target(pixels.to(logits.dtype))).square().mean(dim=-1)
        return {"loss": (error * mask).sum() / mask.sum(), "logits": logits, **run.extras}

    def target(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels, self.patch_size, channels_last=True)
        if not self.normalise:
            return patches
        var, mean = patches.var(dim=-1, keepdim=True), patches.mean(dim=-1, keepdim=True)
        return (patches - mean) / (var + 1e-6).sqrt()
