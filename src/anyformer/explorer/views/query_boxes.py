"""Where each query of a detector places its boxes over a data set: pictures that were handed in, those of a folder, or
a few that are made by formula. A few pictures at a time; the page asks on."""

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

AT_ONCE = 8  # pictures that one question looks at, but no more than
SECONDS = 8.0  # allow; the first is always looked at


@torch.inference_mode()
def slots(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
    """`boxes` [pictures, slots, 4] (centre x and y, width, height in 0…1) from picture `top` on, their colours, how
    many pictures there are (`of`) and which is the next."""
    if opened.boxes is None or opened.processor is None:
        raise InputError(f"A {opened.model.family} model finds no boxes; a detector such as DETR does.")
    pictures, of, source = _some(opened, ask)
    found = _until(opened, ask, pictures, patience)
    tints = size_colors(found[..., 2:].reshape(-1, 2)).view(*found.shape[:2], 3)
    packed = {"boxes": downsample.pack(found), "colours": downsample.pack(tints)}
    return {**packed, "of": of, "next": ask.top + len(found), "source": source}


def _until(opened: LoadedModel, ask: ViewRequest, pictures: list[ImageFile], patience: Deadline) -> Tensor:
    """[pictures, slots, 4] of as many as there is time for."""
    began, boxes = time.monotonic(), [_boxes(opened, ask, pictures[0], patience)]
    for picture in pictures[1:]:
        if time.monotonic() - began > SECONDS:
            break
        boxes.append(_boxes(opened, ask, picture, patience))
    return torch.stack(boxes)


def _some(opened: LoadedModel, ask: ViewRequest) -> tuple[list[ImageFile], int, str]:
    if ask.pictures:
        given = [ImageFile.of(decoded(one, "picture")) for one in ask.pictures]
        return given, ask.top + len(given), "given"
    if opened.gallery is not None:
        chosen, of, source = opened.gallery.some(ask.top, AT_ONCE), len(opened.gallery), "folder"
    else:
        numbers = range(ask.top, min(ask.top + AT_ONCE, sample_inputs.SCENES))
        chosen, of, source = [ImageFile.of(sample_inputs.scene(i)) for i in numbers], sample_inputs.SCENES, "example"
    if not chosen:
        raise InputError(f"There are pictures 0 to {of - 1}; {ask.top} is none of them.")
    return chosen, of, source


def _boxes(opened: LoadedModel, ask: ViewRequest, picture: ImageFile, patience: Deadline) -> Tensor:
    """[slots, 4]"""
    assert opened.processor is not None
    pixels = resize_image(opened, picture.open(opened.processor.mode))
    stacked = opened.processor.stack([pixels])
    batch = opened.processor.normalise(stacked["pixels"], stacked.get("sizes"))
    with watched(opened.model, None, [], patience), ablate_heads(opened.model, ask.silence):
        found: Tensor = opened.model(**batch).pred_boxes[0]
    return found.float()
