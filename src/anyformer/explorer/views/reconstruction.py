"""Masked autoencoders of images and of clips: what they saw, what they made of it, and what was there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import InputError
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.modalities import head_of, hidden_tubes, seeded
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import watched
from anyformer.explorer.views.images import as_image, as_png, patches_of
from anyformer.heads.video_pixels import VideoPixelHead
from anyformer.inputs.image import ImageInput
from anyformer.inputs.video import VideoInput, from_tubelets, tubelets
from anyformer.tasks.classify_video import ClipReader

GREY = 128


@contextmanager
def masking(inputs: ImageInput, share: float) -> Iterator[None]:
    """Inside, another share of the patches is dropped."""
    before = inputs.config
    inputs.config = before.replace(mask_ratio=share)
    try:
        yield
    finally:
        inputs.config = before


@torch.inference_mode()
def reconstruction(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """A masked autoencoder: what it saw, what it made of it, and the image."""
    if isinstance(loaded.reader, ClipReader):
        return _hidden_tubes(loaded, loaded.reader, request, deadline)
    head, processor = loaded.pixels, loaded.processor
    if head is None or processor is None:
        raise InputError(f"A {loaded.model.family} model does not fill in what is hidden; a masked autoencoder does.")
    inputs, subject = patches_of(loaded), loaded.subject(request, deadline)
    pixels = subject.batch["pixel_values"]
    n = inputs.config.grid[0] * inputs.config.grid[1]
    share = min(max(request.share, 1 / n), (n - 1) / n)  # one patch at least is hidden, and one is seen
    noise = torch.rand(1, n, generator=seeded(request))
    with watched(loaded.model, None, [], deadline), ablate_heads(loaded.model, request.silence), masking(inputs, share):
        out = loaded.model(pixel_values=pixels, noise=noise)
    made = head.reconstruct(out.logits, pixels, out.mask)
    grid = inputs.config.grid
    covered = F.interpolate(out.mask.view(1, 1, *grid), size=made.shape[2:]) > 0
    grey = processor.normalize(torch.full_like(pixels, GREY))["pixel_values"]
    images = {"seen": torch.where(covered, grey, pixels), "made": made, "picture": pixels}
    return {
        **{name: as_png(as_image(processor.denormalize(one)[0])) for name, one in images.items()},
        "loss": float(out.loss),
        "hidden": int(out.mask.sum()),
        "patches": n,
    }


def _hidden_tubes(loaded: LoadedModel, reader: ClipReader, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Tubes through all frames are hidden, as many as the share says."""
    head, inputs = head_of(loaded.model, VideoPixelHead), loaded.stages[0].inputs
    if head is None or not isinstance(inputs, VideoInput):
        raise InputError(
            f"This {loaded.model.family} model does not fill in what is hidden; one with pixels as its head does."
        )
    pixels = loaded.subject(request, deadline).batch["pixel_values"]
    times, rows, columns = inputs.config.grid
    mask = hidden_tubes(inputs, request.share, request)
    with watched(loaded.model, None, [], deadline), ablate_heads(loaded.model, request.silence):
        out = loaded.model(pixel_values=pixels, bool_masked_pos=mask)
    plain = head.denormalize(pixels)
    seen = tubelets(plain, inputs.config.tubelet, channels_last=True)
    seen = torch.where(mask.view(1, times, rows, columns, 1), GREY / 255, seen)
    clips = {
        "seen": from_tubelets(seen, inputs.config.tubelet, inputs.config.n_channels),
        "made": head.reconstruct(out.logits, pixels, mask),
        "picture": plain,
    }
    images = {
        name: [as_png(as_image(frame)) for frame in (one[0].clamp(0, 1) * 255).byte()] for name, one in clips.items()
    }
    return {"images": images, "loss": float(out.loss), "hidden": int(mask.sum()), "patches": mask.shape[1]}


def _bytes(pixels: Tensor) -> Tensor:
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
