"""Poses and segments: joints over the picture with what says where they are, and a class for each of its pixels."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch

from anyformer.errors import InputError
from anyformer.explore import grids
from anyformer.explore.ask import Ask
from anyformer.explore.names import skeleton
from anyformer.explore.opened import Opened
from anyformer.explore.patience import Patience
from anyformer.explore.senses import cuts_people_out, head_of
from anyformer.explore.views.pictures import as_png
from anyformer.heads.keypoints import JointHead, PoseHead
from anyformer.heads.segment import SegmentHead
from anyformer.pictures.draw import colour
from anyformer.pictures.open import pillow
from anyformer.tasks.segment import BACKGROUND, Segment
from anyformer.tasks.text import labels_of


@torch.inference_mode()
def pose(opened: Opened, ask: Ask, patience: Patience) -> dict[str, Any]:
    """Joints [n, 3] in shares of the picture with their scores, and the map that each comes from: its heat, or how well
    each cell fits the query that points at it."""
    head = head_of(opened.model, PoseHead)
    if head is None:
        raise InputError(f"A {opened.model.family} model places no joints; one of poses does.")
    subject, trace = opened.look(ask, patience)
    found = head.places(trace.output)[0].float()
    size = torch.tensor(subject.image.size)
    if cuts_people_out(opened.model):  # the middles of the first and the last pixel are its edges
        found = torch.cat([(found[:, :2] * (size - 1) + 0.5) / size, found[:, 2:]], dim=1)
    bones = skeleton(opened)
    if isinstance(head, JointHead):
        cells = trace.run.tokens[head.sees].pad()
        assert cells.grid is not None
        maps = head.fit(trace.run.layers[head.reads][-1].pad().x, cells)[0].unflatten(-1, cells.grid)
    else:
        maps = trace.output["heatmaps"][0]
    return {
        "image": as_png(subject.image),
        "size": [subject.image.size[1], subject.image.size[0]],
        "joints": grids.numbers(found),
        "names": list(bones.names),
        "bones": [list(pair) for pair in bones.bones],
        "maps": grids.pack(maps),
        "peaks": [float(one.max()) for one in maps],
        "points": isinstance(head, JointHead),
    }


@torch.inference_mode()
def segments(opened: Opened, ask: Ask, patience: Patience) -> dict[str, Any]:
    """The class of each pixel as a picture of colours, and how much of the picture each class has."""
    if head_of(opened.model, SegmentHead) is None:
        raise InputError(f"A {opened.model.family} model says no classes of pixels; one for segments does.")
    subject, trace = opened.look(ask, patience)
    size = (subject.image.size[1], subject.image.size[0])
    classes = Segment.classes_of(trace.output["logits"][0].float(), size)
    names = opened.model.origin.settings.get("task", {}).get("labels") or labels_of(opened.model)
    numbers, counts = np.unique(classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    found = [
        {"text": names[number], "class": number, "share": float(counts[i] / classes.size), "colour": colour(number)}
        for i, number in ((int(i), int(numbers[i])) for i in order)
    ]
    return {"image": as_png(subject.image), "size": list(size), "mask": _painted(classes, names), "classes": found}


def _painted(classes: Any, names: Any) -> str:
    """Colours of classes as a data URL; what is background is clear."""
    paint = np.zeros((*classes.shape, 4), dtype=np.uint8)
    for number in np.unique(classes):
        clear = names[int(number)] == BACKGROUND
        paint[classes == number] = (*colour(int(number)), 0 if clear else 255)
    stream = io.BytesIO()
    pillow().Image.fromarray(paint).save(stream, format="PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
