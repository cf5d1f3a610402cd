"""Pixel prediction for the patches that an encoder did not see (MAE, VideoMAE)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.inputs.patches import dropped, patchify, unpatchify

# ImageNet statistics: clips are normalized by them, and predicted unnormalized.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class PixelHead(Head):
    """Predicts every patch of an image; the loss is the squared error of the patches that the stage `source` did not
    see, of pixels or of pixels normalized by patch. There is no loss if it saw all patches.
    """

    may_give = ("loss",)  # of patches that were hidden

    def __init__(
        self, d_model: int, size: tuple[int, ...], n_channels: int, normalize: bool, stage: str, source: str
    ) -> None:
        super().__init__(stage)
        self.size, self.n_channels, self.normalize, self.source = size, n_channels, normalize, source
        values = n_channels
        for n in size:
            values *= n
        self.pixels = Linear(d_model, values)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        kept, pixels = run.tokens[self.source].pad(), run.tensor("pixel_values")
        assert pixels is not None
        logits = self.pixels(run.padded(self.stage)[:, 1:])
        if kept.x.shape[1] > logits.shape[1]:  # a class token and all patches
            return {"logits": logits}
        mask = dropped(kept, logits.shape[1] + 1)[:, 1:].to(logits.dtype)
        error = (logits - self.target(pixels.to(logits.dtype))).square().mean(dim=-1)
        return {"loss": (error * mask).sum() / mask.sum(), "logits": logits}

    def target(self, pixels: Tensor) -> Tensor:
        """What is predicted [B, patches, values]."""
        patches = patchify(self.denormalize(pixels), self.size, channels_last=True)
        if not self.normalize:
            return patches
        mean, spread = self.statistics(patches)
        return (patches - mean) / spread

    def reconstruct(self, logits: Tensor, pixels: Tensor, mask: Tensor) -> Tensor:
        """Return the images or clips with predictions for the patches in `mask` [B, patches]; `logits` are of all
        patches or of those. If pixels are normalized by patch, mean and standard deviation are taken from the input.
        """
        plain = self.denormalize(pixels)
        patches, mask = patchify(plain, self.size, channels_last=True), mask.bool()
        if logits.shape[1] < mask.shape[1]:
            logits = torch.zeros_like(patches, dtype=logits.dtype).masked_scatter(mask.unsqueeze(-1), logits)
        if self.normalize:
            mean, spread = self.statistics(patches)
            logits = logits * spread + mean
        shape = plain.shape[-2:] if len(self.size) == 2 else (plain.shape[1], *plain.shape[-2:])
        grid = tuple(n // step for n, step in zip(shape, self.size, strict=True))
        return unpatchify(torch.where(mask.unsqueeze(-1), logits, patches), grid, self.size)

    def denormalize(self, pixels: Tensor) -> Tensor:
        """The pixels as they are predicted."""
        return pixels

    def statistics(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each patch."""
        var, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        return mean, (var + 1e-6).sqrt()


class VideoPixelHead(PixelHead):
    """Predicts the dropped tubelets of a clip alone. They are normalized by tubelet and channel."""

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        pixels = run.tensor("pixel_values")
        assert pixels is not None
        target = self.target(pixels.to(self.pixels.weight.dtype))
        mask = dropped(run.tokens[self.source].pad(), target.shape[1])
        logits = self.pixels(run.padded(self.stage)[:, -int(mask[0].sum()) :])
        return {"loss": (logits - target[mask].view_as(logits)).square().mean(), "logits": logits}

    def denormalize(self, pixels: Tensor) -> Tensor:
        """Undo the ImageNet normalization."""
        if self.n_channels != len(MEAN):
            return pixels
        mean, std = (torch.tensor(values).to(pixels).view(1, 1, -1, 1, 1) for values in (MEAN, STD))
        return pixels * std + mean

    def statistics(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        each = patches.unflatten(2, (-1, self.n_channels))
        mean, spread = each.mean(dim=2), each.var(dim=2).sqrt() + 1e-6  # [B, tubelets, channels]
        copies = each.shape[2]
        return mean.repeat(1, 1, copies), spread.repeat(1, 1, copies)
