"""Inputs other than text: video, sets and table rows, from an uploaded file or a generated sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data.images.person_crop import crop_person
from anyformer.data.images.processor import FILE
from anyformer.data.settings import DataSettings
from anyformer.data.video.clips import Clip
from anyformer.errors import FolderError
from anyformer.explorer import sample_inputs, uploads
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.generation.keypoints import predict_keypoints
from anyformer.heads.base import Head
from anyformer.heads.boxes import BoxHead
from anyformer.heads.keypoints import PoseHead
from anyformer.heads.pixels import VideoPixelHead
from anyformer.heads.segment import SegmentationHead
from anyformer.inputs.image import ImageInput
from anyformer.inputs.multimodal import MultimodalInput
from anyformer.inputs.queries import AutoregressiveQueries, LearnedQueries, PatchesAndQueries
from anyformer.inputs.sets import SetInput, TableInput
from anyformer.inputs.video import VideoInput
from anyformer.jsonfile import parse_object
from anyformer.model import Model, Stage
from anyformer.tasks.classify_set import ClassifySet, SetReader, TableReader
from anyformer.tasks.classify_video import ClassifyVideo, ClipReader

if TYPE_CHECKING:
    from anyformer.explorer.loaded_model import LoadedModel

Reader = ClipReader | SetReader | TableReader
Shown = dict[str, Any]  # what the page draws: the kind of input and its data
Kind = TypeVar("Kind", bound=Head)


def head_of(model: Model, kind: type[Kind]) -> Kind | None:
    """The first head of a type; None if there is none."""
    return next((head for head in model.heads.values() if isinstance(head, kind)), None)


def _inputs(model: Model, *kinds: type[nn.Module]) -> nn.Module | None:
    stages = cast("list[Stage]", list(model.stages.values()))
    return next((stage.inputs for stage in stages if isinstance(stage.inputs, kinds)), None)


def find_reader(model: Model) -> Reader | None:
    """The reader of the folder; else one without normalization. None if the model reads no video, set or table."""
    if _inputs(model, VideoInput) is not None:
        return ClassifyVideo.find_reader(model, None, DataSettings())
    items, table = _inputs(model, SetInput), _inputs(model, TableInput)
    if items is None and table is None:
        return None
    try:
        return cast("Reader", ClassifySet.find_reader(model, None, DataSettings()))
    except FolderError:  # no statistics in the folder
        if isinstance(items, SetInput):
            return SetReader(means=(0.0,) * items.d_item, stds=(1.0,) * items.d_item)
        config = cast("TableInput", table).config
        numbers = tuple(f"number {i + 1}" for i in range(config.n_numbers))
        values = {f"choice {i + 1}": list(map(str, range(n))) for i, n in enumerate(config.categories)}
        zeros, ones = (0.0,) * len(numbers), (1.0,) * len(numbers)
        return TableReader(numbers=numbers, means=zeros, stds=ones, categories=tuple(values), values=values)


def read_input(reader: Reader, request: ViewRequest) -> tuple[dict[str, Tensor], Shown]:
    """The batch, and what the page draws."""
    if isinstance(reader, ClipReader):
        found, of = (
            (Clip.of(sample_inputs.clip()), 1)
            if request.clip is None
            else uploads.read_clip(request.file("clip"), request.row)
        )
        frames = reader.frames(found)
        return {"pixel_values": reader.normalize(frames[None])}, {"kind": "clip", "frames": frames, "of": of}
    if isinstance(reader, SetReader):
        width = len(reader.means)
        sample = sample_inputs.points(width) * np.array(reader.stds) + np.array(reader.means)
        items, of = (sample, 1) if request.items is None else uploads.read_set(request.file("items"), request.row)
        batch = {name: torch.as_tensor(value)[None] for name, value in reader(items).items()}
        return batch, {"kind": "points", "items": torch.as_tensor(np.asarray(items, dtype=np.float32)), "of": of}
    columns = reader.names_of()
    row, of = (
        (sample_inputs.row(reader), 1)
        if request.items is None
        else uploads.read_row(request.file("items"), request.row, columns)
    )
    batch = {name: torch.as_tensor(value)[None] for name, value in reader(row).items()}
    values = ["" if row.get(name) is None else str(row[name]) for name in columns]
    return batch, {"kind": "table", "columns": list(columns), "values": values, "of": of}


def crops_persons(model: Model) -> bool:
    """Whether the model is a pose model that expects crops of persons. The whole image is used as the crop."""
    name = parse_object(model.origin.files.get(FILE, b"{}"), FILE).get("image_processor_type", "")
    return head_of(model, PoseHead) is not None and str(name).startswith("VitPose")


def resize_image(loaded: LoadedModel, image: Any) -> Any:
    """Resize an image to the input of the model: 8-bit pixels [channels, height, width]."""
    assert loaded.processor is not None
    size = loaded.processor.fixed
    if size is not None and crops_persons(loaded.model):
        return crop_person(image, (0, 0, image.width, image.height), size)[0]
    return loaded.processor.resize(image)[0]


@torch.inference_mode()
def autoregressive_inputs(
    loaded: LoadedModel, request: ViewRequest, batch: dict[str, Any], deadline: Deadline
) -> dict[str, Any]:
    """Additional inputs: keypoints for autoregressive pose models; a fixed mask for masked autoencoders, so that all
    passes use the same mask."""
    deadline.check()
    clips, patches = _inputs(loaded.model, VideoInput), loaded.patches
    if patches is not None and loaded.pixels is not None:
        rows, columns = patches.config.grid
        return {"noise": torch.rand(1, rows * columns, generator=seeded(request))}
    if isinstance(clips, VideoInput) and clips.config.mask_ratio is not None:
        return {"bool_masked_pos": hidden_tubes(clips, clips.config.mask_ratio, request)}
    if _inputs(loaded.model, AutoregressiveQueries) is None:
        return {}
    with ablate_heads(loaded.model, request.ablate):
        return {"places": predict_keypoints(loaded.model, batch["pixel_values"]).keypoints}


def image_placeholder_ids(model: Model) -> list[int]:
    """The placeholder ids at the start of a text: one for each token of the image."""
    multimodal = _inputs(model, MultimodalInput)
    found: list[int] = []
    for name, token in multimodal.places.items() if isinstance(multimodal, MultimodalInput) else ():
        inputs = model.stages[name].inputs
        if isinstance(inputs, ImageInput):
            rows, columns = inputs.config.grid
            found += [token] * (rows * columns + int(inputs.config.class_token))
    return found


def seeded(request: ViewRequest) -> torch.Generator:
    """A generator with the seed of the request."""
    return torch.Generator().manual_seed(request.seed)


def hidden_tubes(inputs: VideoInput, share: float, request: ViewRequest) -> Tensor:
    """A tube mask [1, tokens], True = masked: the same fraction `share` of the cells in all frames, at least one and
    not all."""
    times, rows, columns = inputs.config.grid
    cells = rows * columns
    ranks = torch.rand(cells, generator=seeded(request)).argsort().argsort()
    return (ranks < min(max(round(share * cells), 1), cells - 1)).repeat(times)[None]


def capabilities(loaded: LoadedModel) -> dict[str, Any]:
    """Modalities and outputs from which the page chooses the views to offer."""
    model, reader = loaded.model, loaded.reader
    return {
        "clips": isinstance(reader, ClipReader),
        "sets": isinstance(reader, SetReader),
        "tables": isinstance(reader, TableReader),
        "reconstruction": loaded.pixels is not None or head_of(model, VideoPixelHead) is not None,
        "keypoints": head_of(model, PoseHead) is not None,
        "segmentation": head_of(model, SegmentationHead) is not None,
        "queries": _inputs(model, LearnedQueries, AutoregressiveQueries, PatchesAndQueries) is not None
        or _is_detector(model),
        "gallery": 0 if loaded.gallery is None else len(loaded.gallery),
    }


def _is_detector(model: Model) -> bool:
    return head_of(model, BoxHead) is not None
