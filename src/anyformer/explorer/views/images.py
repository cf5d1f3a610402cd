"""Images: patch filters, position embeddings of patches, and detections."""

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
from anyformer.generation.detection import select_detections, tidy
from anyformer.inputs.image import ImageInput
from anyformer.tasks.detect import Detect, usual_nms
from anyformer.tasks.text import labels_of

FILTERS = 28  # number of principal components, as in figure 7 of the ViT paper
MAX_SIDE = 448  # pixels


def as_png(image: Any) -> str:
    """A PIL image as a data URL, resized to at most MAX_SIDE."""
    image = image.copy()
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    stream = io.BytesIO()
    image.convert("RGB").save(stream, format="PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def patches_of(loaded: LoadedModel) -> ImageInput:
    """The patch embedding of the model."""
    inputs = loaded.patches
    if inputs is None:
        raise InputError(f"{loaded.model.family} models do not split images into patches.")
    return inputs


@torch.inference_mode()
def filters(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The principal components of the patch embedding as small images, each scaled to its own range."""
    inputs = patches_of(loaded)
    if inputs.resnet is not None:
        raise InputError(
            "This model embeds patches of convolutional features, so its filters cannot be shown as images."
        )
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
def patch_positions(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The cosine similarity of one patch position to all others [rows, columns]."""
    inputs = patches_of(loaded)
    if inputs.positions is None:
        raise InputError("This model has no position embeddings for patches.")
    rows, columns = inputs.config.grid
    table = inputs.positions(rows, columns)[inputs.positions.extra :].float()
    at = place(request.position, rows * columns)
    unit = F.normalize(table, dim=-1)
    return {"map": downsample.pack((unit @ unit[at]).view(rows, columns)), "position": at}


def as_image(pixels: Tensor) -> Any:
    """8-bit pixels [channels, height, width] as a PIL image."""
    shown = pixels.permute(1, 2, 0).numpy()
    return pillow().Image.fromarray(shown[..., 0] if shown.shape[-1] == 1 else shown)


@torch.inference_mode()
def detections(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Detections in order of score: boxes as fractions of the image, each with its query."""
    head = loaded.boxes
    if head is None or head.score_field is None:
        raise InputError(f"{loaded.model.family} models do not detect objects; use a detector such as DETR.")
    model_input, trace = loaded.trace(request, deadline)
    scores = trace.output[head.score_field].float().log_softmax(-1).exp()[..., :-1]
    best, classes = scores.max(dim=-1)
    outputs = {
        "labels": classes[0],
        "scores": best[0],
        **{k: v[0] for k, v in head.postprocess(trace.output, None).items()},
    }
    _, chosen = Detect.chosen(loaded.model, {})
    nms = usual_nms(loaded.model) if chosen.nms is None else chosen.nms
    found = tidy(
        select_detections(outputs, request.threshold), (1, 1), nms
    )  # as fractions of the image; the task does the same in pixels
    names = labels_of(loaded.model)
    found_boxes = [
        {"text": names[label] if label < len(names) else str(label), "score": score, "box": box, "query": query}
        for label, score, box, query in zip(
            *(found[name].tolist() for name in ("labels", "scores", "boxes", "queries")), strict=True
        )
    ]
    sites = trace.layers(None, "cross")
    top = {"score": float(best.max()), "query": int(best[0].argmax())}
    return {
        "image": as_png(model_input.image),
        "detections": found_boxes,
        "queries": best.shape[1],
        "top": top,
        "layers": len(sites),
    }
