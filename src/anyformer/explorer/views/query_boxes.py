"""Where each query of a detector places its boxes over a data set: images that were handed in, those of a folder, or
a few that are made by formula. A few images at a time; the page asks on."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from anyformer.data.images.image_file import ImageFile
from anyformer.errors import InputError
from anyformer.explorer import downsample, sample_inputs
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.modalities import resize_image
from anyformer.explorer.plot_queries import size_colors
from anyformer.explorer.request import ViewRequest, decoded
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import watched

AT_ONCE = 8  # images that one question looks at, but no more than
SECONDS = 8.0  # allow; the first is always looked at


@torch.inference_mode()
def slots(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """`boxes` [images, slots, 4] (center x and y, width, height in 0…1) from image `top` on, their colors, how
    many images there are (`of`) and which is the next."""
    if loaded.boxes is None or loaded.processor is None:
        raise InputError(f"A {loaded.model.family} model finds no boxes; a detector such as DETR does.")
    pictures, of, source = _some(loaded, request)
    found = _until(loaded, request, pictures, deadline)
    tints = size_colors(found[..., 2:].reshape(-1, 2)).view(*found.shape[:2], 3)
    packed = {"boxes": downsample.pack(found), "colours": downsample.pack(tints)}
    return {**packed, "of": of, "next": request.top + len(found), "source": source}


def _until(loaded: LoadedModel, request: ViewRequest, images: list[ImageFile], deadline: Deadline) -> Tensor:
    """[images, slots, 4] of as many as there is time for."""
    began, boxes = time.monotonic(), [_boxes(loaded, request, images[0], deadline)]
    for picture in images[1:]:
        if time.monotonic() - began > SECONDS:
            break
        boxes.append(_boxes(loaded, request, picture, deadline))
    return torch.stack(boxes)


def _some(loaded: LoadedModel, request: ViewRequest) -> tuple[list[ImageFile], int, str]:
    if request.pictures:
        given = [ImageFile.of(decoded(one, "picture")) for one in request.pictures]
        return given, request.top + len(given), "given"
    if loaded.gallery is not None:
        chosen, of, source = loaded.gallery.some(request.top, AT_ONCE), len(loaded.gallery), "folder"
    else:
        numbers = range(request.top, min(request.top + AT_ONCE, sample_inputs.SCENES))
        chosen, of, source = [ImageFile.of(sample_inputs.scene(i)) for i in numbers], sample_inputs.SCENES, "example"
    if not chosen:
        raise InputError(f"There are images 0 to {of - 1}; {request.top} is none of them.")
    return chosen, of, source


def _boxes(loaded: LoadedModel, request: ViewRequest, image: ImageFile, deadline: Deadline) -> Tensor:
    """[slots, 4]"""
    assert loaded.processor is not None
    pixels = resize_image(loaded, image.open(loaded.processor.mode))
    stacked = loaded.processor.stack([pixels])
    batch = loaded.processor.normalize(stacked["pixels"], stacked.get("sizes"))
    with watched(loaded.model, None, [], deadline), ablate_heads(loaded.model, request.silence):
        found: Tensor = loaded.model(**batch).pred_boxes[0]
    return found.float()
