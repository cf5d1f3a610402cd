"""Masked autoencoders of images and video: visible patches, reconstruction, and original."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from anyformer.errors import InputError
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.modalities import head_of, hidden_tubes, seeded
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import watched
from anyformer.explorer.views.images import as_image, as_png, patches_of
from anyformer.heads.pixels import VideoPixelHead
from anyformer.inputs.image import ImageInput
from anyformer.inputs.patches import patchify, unpatchify
from anyformer.inputs.video import VideoInput
from anyformer.tasks.classify_video import ClipReader

GRAY = 128


@contextmanager
def masking(inputs: ImageInput, share: float) -> Iterator[None]:
    """Within this context, the mask ratio of the input is `share`."""
    before = inputs.config
    inputs.config = before.replace(mask_ratio=share)
    try:
        yield
    finally:
        inputs.config = before


@torch.inference_mode()
def reconstruction(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The visible patches, the reconstruction and the original image."""
    if isinstance(loaded.reader, ClipReader):
        return _hidden_tubes(loaded, loaded.reader, request, deadline)
    head, processor = loaded.pixels, loaded.processor
    if head is None or processor is None:
        raise InputError(f"{loaded.model.family} models do not reconstruct masked patches; use a masked autoencoder.")
    inputs, model_input = patches_of(loaded), loaded.model_input(request, deadline)
    pixels = model_input.batch["pixel_values"]
    n = inputs.config.grid[0] * inputs.config.grid[1]
    share = min(max(request.share, 1 / n), (n - 1) / n)  # at least one masked and one visible patch
    noise = torch.rand(1, n, generator=seeded(request))
    with watched(loaded.model, None, [], deadline), ablate_heads(loaded.model, request.ablate), masking(inputs, share):
        out = loaded.model(pixel_values=pixels, noise=noise)
    made = head.reconstruct(out.logits, pixels, out.mask)
    grid = inputs.config.grid
    covered = F.interpolate(out.mask.view(1, 1, *grid), size=made.shape[2:]) > 0
    gray = processor.normalize(torch.full_like(pixels, GRAY))["pixel_values"]
    images = {"visible": torch.where(covered, gray, pixels), "reconstruction": made, "image": pixels}
    return {
        **{name: as_png(as_image(processor.denormalize(one)[0])) for name, one in images.items()},
        "loss": float(out.loss),
        "masked": int(out.mask.sum()),
        "patches": n,
    }


def _hidden_tubes(loaded: LoadedModel, reader: ClipReader, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The same for video, where the mask is the same in all frames."""
    head, inputs = head_of(loaded.model, VideoPixelHead), loaded.stages[0].inputs
    if head is None or not isinstance(inputs, VideoInput):
        raise InputError(
            f"This {loaded.model.family} model does not reconstruct masked patches; use a video model with pixel head."
        )
    pixels = loaded.model_input(request, deadline).batch["pixel_values"]
    mask = hidden_tubes(inputs, request.share, request)
    with watched(loaded.model, None, [], deadline), ablate_heads(loaded.model, request.ablate):
        out = loaded.model(pixel_values=pixels, bool_masked_pos=mask)
    plain = head.denormalize(pixels)
    seen = patchify(plain, inputs.config.tubelet, channels_last=True)
    seen = torch.where(mask.unsqueeze(-1), GRAY / 255, seen)
    clips = {
        "visible": unpatchify(seen, inputs.config.grid, inputs.config.tubelet),
        "reconstruction": head.reconstruct(out.logits, pixels, mask),
        "image": plain,
    }
    images = {
        name: [as_png(as_image(frame)) for frame in (one[0].clamp(0, 1) * 255).byte()] for name, one in clips.items()
    }
    return {"images": images, "loss": float(out.loss), "masked": int(mask.sum()), "patches": mask.shape[1]}
