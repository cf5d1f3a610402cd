"""Pixel prediction for each patch (MAE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.inputs.image import patchify, unpatchify


class PixelHead(Head):
    """Predicts the dropped patches; the loss is their squared error, of pixels or of pixels normalized by patch. There
    is no loss if the stage `source` saw all patches.
    """

    def __init__(
        self, d_model: int, patch_size: tuple[int, int], n_channels: int, normalize: bool, stage: str, source: str
    ) -> None:
        super().__init__(stage)
        self.patch_size, self.normalize, self.source = patch_size, normalize, source
        self.pixels = Linear(d_model, patch_size[0] * patch_size[1] * n_channels)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        logits = self.pixels(run.padded(self.stage)[:, 1:])
        pixels = run.tensor("pixel_values")
        assert pixels is not None
        mask = run.extras["mask"]
        if run.tokens[self.source].pad().x.shape[1] > logits.shape[1]:  # a class token and all patches
            return {"logits": logits, **run.extras}
        error = (logits - self.target(pixels.to(logits.dtype))).square().mean(dim=-1)
        return {"loss": (error * mask).sum() / mask.sum(), "logits": logits, **run.extras}

    def target(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels, self.patch_size, channels_last=True)
        if not self.normalize:
            return patches
        mean, spread = _statistics(patches)
        return (patches - mean) / spread

    def reconstruct(self, logits: Tensor, pixels: Tensor, mask: Tensor) -> Tensor:
        """Return [B, C, H, W]: predictions for dropped patches, the image elsewhere. If pixels are normalized by patch,
        mean and standard deviation of each patch are taken from the image.
        """
        patches = patchify(pixels, self.patch_size, channels_last=True)
        if self.normalize:
            mean, spread = _statistics(patches)
            logits = logits * spread + mean
        grid = (pixels.shape[2] // self.patch_size[0], pixels.shape[3] // self.patch_size[1])
        return unpatchify(torch.where(mask.bool().unsqueeze(-1), logits, patches), grid, self.patch_size)


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return mean, (var + 1e-6).sqrt()
