"""Keypoints with their maps, and semantic segmentation."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch

from anyformer.data.images.draw import class_color
from anyformer.data.images.image_file import pillow
from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.modalities import crops_persons, head_of
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.token_labels import skeleton
from anyformer.explorer.views.images import as_png
from anyformer.heads.keypoints import KeypointHead, PoseHead
from anyformer.heads.segment import SegmentationHead
from anyformer.tasks.segment import BACKGROUND, Segment
from anyformer.tasks.text import labels_of


@torch.inference_mode()
def pose(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Keypoints [n, 3] (x and y as fractions of the image, score), and a map of each: the heat map, or the similarity
    of each cell to the query of the keypoint."""
    head = head_of(loaded.model, PoseHead)
    if head is None:
        raise InputError(f"{loaded.model.family} models do not predict keypoints; use a pose model.")
    model_input, trace = loaded.trace(request, deadline)
    found = head.keypoints(trace.output)[0].float()
    size = torch.tensor(model_input.image.size)
    if crops_persons(loaded.model):  # here 0 and 1 are the centers of the first and the last pixel
        found = torch.cat([(found[:, :2] * (size - 1) + 0.5) / size, found[:, 2:]], dim=1)
    bones = skeleton(loaded)
    if isinstance(head, KeypointHead):
        cells = trace.run.tokens[head.sees].pad()
        assert cells.grid is not None
        maps = head.fit(trace.run.layers[head.stage][-1].pad().x, cells)[0].unflatten(-1, cells.grid)
    else:
        maps = trace.output["heatmaps"][0]
    return {
        "image": as_png(model_input.image),
        "size": [model_input.image.size[1], model_input.image.size[0]],
        "keypoints": downsample.numbers(found),
        "names": list(bones.names),
        "bones": [list(pair) for pair in bones.bones],
        "maps": downsample.pack(maps),
        "peaks": [float(one.max()) for one in maps],
        "points": isinstance(head, KeypointHead),
    }


@torch.inference_mode()
def segments(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The class of each pixel as a colored mask, and the fraction of the image of each class."""
    if head_of(loaded.model, SegmentationHead) is None:
        raise InputError(f"{loaded.model.family} models do not segment images; use a segmentation model.")
    model_input, trace = loaded.trace(request, deadline)
    size = (model_input.image.size[1], model_input.image.size[0])
    classes = Segment.classes_of(trace.output["logits"][0].float(), size)
    names = loaded.model.origin.settings.get("task", {}).get("labels") or labels_of(loaded.model)
    numbers, counts = np.unique(classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    found = [
        {
            "text": names[number],
            "class": number,
            "share": float(counts[i] / classes.size),
            "color": class_color(number),
        }
        for i, number in ((int(i), int(numbers[i])) for i in order)
    ]
    return {"image": as_png(model_input.image), "size": list(size), "mask": _painted(classes, names), "classes": found}


def _painted(classes: Any, names: Any) -> str:
    """The colored mask as a data URL; the background is transparent."""
    paint = np.zeros((*classes.shape, 4), dtype=np.uint8)
    for number in np.unique(classes):
        clear = names[int(number)] == BACKGROUND
        paint[classes == number] = (*class_color(int(number)), 0 if clear else 255)
    stream = io.BytesIO()
    pillow().Image.fromarray(paint).save(stream, format="PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
