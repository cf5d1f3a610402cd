"""Images: filters and places of their patches; detectors."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.data.images.image_file import pillow
from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views.heads import place
from anyformer.generation.detection import select_detections as pick_slots
from anyformer.generation.detection import tidy
from anyformer.inputs.image import ImageInput
from anyformer.tasks.detect import Detect, usual_nms
from anyformer.tasks.text import labels_of

FILTERS = 28  # of the patch embedding, as in figure 7 of the ViT paper
LARGEST = 448  # pixels of a side that are sent
GREY = 128


def as_png(image: Any) -> str:
    """A PIL image as a data URL, shrunk where it is larger than it is drawn."""
    image = image.copy()
    image.thumbnail((LARGEST, LARGEST))
    stream = io.BytesIO()
    image.convert("RGB").save(stream, format="PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def patches_of(loaded: LoadedModel) -> ImageInput:
    inputs = loaded.patches
    if inputs is None:
        raise InputError(f"A {loaded.model.family} model does not cut images into patches.")
    return inputs


@torch.inference_mode()
def filters(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The first principal components of the patch embedding, each as a small image of its own range."""
    inputs = patches_of(loaded)
    if inputs.resnet is not None:
        raise InputError("Patches are cut from a network's features here, so their filters are no images.")
    weight = inputs.patches.weight.float()
    _, strengths, components = torch.linalg.svd(weight - weight.mean(dim=0), full_matrices=False)
    n = min(FILTERS, len(components))
    height, width = inputs.config.patch_size
    cells = components[:n].view(n, inputs.config.n_channels, height, width)
    low, high = cells.amin(dim=(1, 2, 3), keepdim=True), cells.amax(dim=(1, 2, 3), keepdim=True)
    shown = ((cells - low) / (high - low).clamp(min=1e-9)).permute(0, 2, 3, 1)
    share = strengths.square() / strengths.square().sum()
    return {"filters": downsample.pack(shown), "share": downsample.numbers(share[:n])}


@torch.inference_mode()
def places(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """How alike the position of one patch is to those of all others (cosine), [rows, columns]."""
    inputs = patches_of(loaded)
    if inputs.positions is None:
        raise InputError("This model adds no positions to its patches.")
    rows, columns = inputs.config.grid
    table = inputs.positions.table(rows, columns)[inputs.positions.extra :].float()
    at = place(request.position, rows * columns)
    unit = F.normalize(table, dim=-1)
    return {"map": downsample.pack((unit @ unit[at]).view(rows, columns)), "position": at}


def as_image(pixels: Tensor) -> Any:
    """8-bit pixels [channels, rows, columns] as a PIL image."""
    shown = pixels.permute(1, 2, 0).numpy()
    return pillow().Image.fromarray(shown[..., 0] if shown.shape[-1] == 1 else shown)


@torch.inference_mode()
def detections(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Boxes of a detector, surest first, in shares of the image, each with the query that found it."""
    head = loaded.boxes
    if head is None or head.score_field is None:
        raise InputError(f"A {loaded.model.family} model finds no boxes; a detector such as DETR does.")
    subject, trace = loaded.trace(request, deadline)
    scores = trace.output[head.score_field].float().log_softmax(-1).exp()[..., :-1]
    best, classes = scores.max(dim=-1)
    slots = {
        "labels": classes[0],
        "scores": best[0],
        **{k: v[0] for k, v in head.postprocess(trace.output, None).items()},
    }
    _, chosen = Detect.chosen(loaded.model, {})
    nms = usual_nms(loaded.model) if chosen.nms is None else chosen.nms
    found = tidy(
        pick_slots(slots, request.threshold), (1, 1), nms
    )  # in shares of the image, as the task does in pixels
    names = labels_of(loaded.model)
    things = [
        {"text": names[label] if label < len(names) else str(label), "score": score, "box": box, "slot": slot}
        for label, score, box, slot in zip(
            *(found[name].tolist() for name in ("labels", "scores", "boxes", "queries")), strict=True
        )
    ]
    sites = trace.layers(None, "cross")
    top = {"score": float(best.max()), "slot": int(best[0].argmax())}
    return {"image": as_png(subject.image), "things": things, "slots": best.shape[1], "top": top, "layers": len(sites)}
