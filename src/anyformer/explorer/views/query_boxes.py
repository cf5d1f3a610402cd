"""Where each object query of a detector places its boxes: over uploaded images, the images of a folder, or generated
images. A request handles a few images; the page sends further requests for the rest."""

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

IMAGES_PER_REQUEST = 8
MAX_SECONDS = 8.0  # per request; at least one image is processed


@torch.inference_mode()
def query_boxes(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """`boxes` [images, queries, 4] (center x and y, width, height in 0…1) of the images from index `top`, their colors,
    the number of images (`of`) and the index of the next image."""
    if loaded.boxes is None or loaded.processor is None:
        raise InputError(f"{loaded.model.family} models do not detect objects; use a detector such as DETR.")
    images, of, source = _some(loaded, request)
    found = _boxes_in_time(loaded, request, images, deadline)
    tints = size_colors(found[..., 2:].reshape(-1, 2)).view(*found.shape[:2], 3)
    packed = {"boxes": downsample.pack(found), "colors": downsample.pack(tints)}
    return {**packed, "of": of, "next": request.top + len(found), "source": source}


def _boxes_in_time(loaded: LoadedModel, request: ViewRequest, images: list[ImageFile], deadline: Deadline) -> Tensor:
    """Boxes [images, queries, 4] of as many images as fit into MAX_SECONDS."""
    began, boxes = time.monotonic(), [_boxes(loaded, request, images[0], deadline)]
    for image in images[1:]:
        if time.monotonic() - began > MAX_SECONDS:
            break
        boxes.append(_boxes(loaded, request, image, deadline))
    return torch.stack(boxes)


def _some(loaded: LoadedModel, request: ViewRequest) -> tuple[list[ImageFile], int, str]:
    """The next images, the total number of images, and their origin."""
    if request.images:
        given = [ImageFile.of(decoded(one, "the image")) for one in request.images]
        return given, request.top + len(given), "given"
    if loaded.gallery is not None:
        chosen, of, source = loaded.gallery.some(request.top, IMAGES_PER_REQUEST), len(loaded.gallery), "folder"
    else:
        numbers = range(request.top, min(request.top + IMAGES_PER_REQUEST, sample_inputs.SCENES))
        chosen, of, source = [ImageFile.of(sample_inputs.scene(i)) for i in numbers], sample_inputs.SCENES, "example"
    if not chosen:
        raise InputError(f"top is {request.top}; expected 0 to {of - 1}.")
    return chosen, of, source


def _boxes(loaded: LoadedModel, request: ViewRequest, image: ImageFile, deadline: Deadline) -> Tensor:
    """The boxes of one image [queries, 4]."""
    assert loaded.processor is not None
    pixels = resize_image(loaded, image.open(loaded.processor.mode))
    stacked = loaded.processor.stack([pixels])
    batch = loaded.processor.normalize(stacked["pixels"], stacked.get("sizes"))
    with watched(loaded.model, None, [], deadline), ablate_heads(loaded.model, request.ablate):
        found: Tensor = loaded.model(**batch).pred_boxes[0]
    return found.float()
