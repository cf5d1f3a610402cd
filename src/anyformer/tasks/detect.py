"""Object detection: boxes and classes.

detect = af.task("detect", "folder")
print(detect("street.jpg"))             # a line for each thing: car 0.97 at 12, 40, 210, 160
detect("street.jpg").draw()             # the image with the boxes on it
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example
from anyformer.data.images import draw
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.processor import IMAGENET, ImageProcessor, ResizeTransform
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, InputError
from anyformer.forward_context import IGNORED, Output
from anyformer.generation.detection import detection_head, postprocess, tidy
from anyformer.heads.box_ops import clip, is_degenerate, to_cxcywh
from anyformer.heads.matcher import DetectionTargets
from anyformer.heads.set_criterion import BOX, CLASS, GIOU
from anyformer.metrics.detection import GroundTruthBoxes, PredictedBoxes, average_precision, coco_metrics
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, Drawing
from anyformer.tasks.base import Batch, Column, Loss, Metrics, Progress, TaskSetup, Total, answering
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture import ImageOptions, PictureTask
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import labels_of

NMS = 0.7  # of detectors for small data: two of their anchors often end at one thing
NAMED = 5  # boxes that are told of one by one when they are left out


@dataclass(frozen=True)
class Detection(Answer):
    """`box` is left, top, right, bottom in pixels of the image; `slot` is the index of the object query."""

    label: str
    score: float
    box: tuple[float, float, float, float]
    query: int

    def __str__(self) -> str:
        return f"{self.label} {self.score:.2f} at {', '.join(f'{side:.0f}' for side in self.box)}"


@dataclass(frozen=True)
class Detections(Answer, Sequence[Detection]):
    """Detections for each image, the most confident first. `draw()` returns the image with the boxes."""

    items: tuple[Detection, ...]
    draw: Drawing = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: Any) -> Any:
        return self.items[i]

    def __str__(self) -> str:
        return "\n".join(str(thing) for thing in self.items) or "nothing"


@dataclass(frozen=True, kw_only=True)
class DetectOptions(ImageOptions):
    augment: Augmentation = Augmentation(crop=(0.35, 1.2), flip=0.5, color_jitter=0.2)
    threshold: float = 0.5  # answers are as sure as this at least; figures count all of them
    # Of two boxes of one class whose IoU is above this, the less sure is left out; 1 keeps all. None: 0.7 for detectors
    # whose queries are anchors (detr-small), 1 for others, which learn to leave duplicates out.
    nms: float | None = None

    def check(self) -> None:
        self.require(self.nms is None or 0 < self.nms <= 1, f"nms is {self.nms}; it must be above 0 and at most 1.")
        self.require(0 <= self.threshold <= 1, f"threshold is {self.threshold}; it must be from 0 to 1.")


class Detect(PictureTask[ImageInput, Detections]):
    name = "detect"
    about = "detect objects: boxes, classes and scores"
    columns = (
        Column("image"),
        Column("boxes", ("bbox", "bboxes")),
        Column("classes", ("labels", "category", "categories")),
        Column("areas", optional=True),
        Column("crowds", ("iscrowd",), optional=True),
    )
    options_class = DetectOptions
    settings: DetectOptions
    takes = ("threshold", "nms")
    label_column = "classes"
    metric = "ap"
    wanted = "a detector such as DETR"
    has_slots = True
    _left_out = 0

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        if self.settings.nms is None:
            self.settings = self.settings.replace(nms=usual_nms(self.model))

    # The model.

    @classmethod
    def find_labels(cls, rows: Rows, options: DetectOptions, setup: TaskSetup) -> tuple[str, ...]:
        labels = super().find_labels(rows, options, setup)
        if not labels or not any(row["boxes"] is not None and len(row["boxes"]) for row in rows):
            raise DataError(f"{rows.path} has no boxes with classes; detect needs both.")
        return labels

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return {"n_queries", "giou_weight"} <= set(config.field_names())

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: DetectOptions) -> Settings:
        """Fresh decoders learn from the loss of every layer."""
        return config.replace(n_labels=len(labels), auxiliary_loss=True)

    @classmethod
    def take_further(
        cls, model: Model, labels: tuple[str, ...], options: DetectOptions
    ) -> tuple[Model, tuple[str, ...]]:
        """Other classes want other scores; what places boxes stays. Whether every layer is read stays too: it changes a
        trained model's numbers."""
        known = tuple(model.origin.settings.get("task", {}).get("labels") or labels_of(model))
        if set(known) == set(labels):
            return model, known
        further = build.with_head(model, False, n_labels=len(labels))
        kept = {name: value for name, value in model.state_dict().items() if name.startswith("boxes.boxes.")}
        further.load_state_dict(kept, strict=False)
        return further, labels

    @classmethod
    def make_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> ImageProcessor:
        """The shorter side as long as the model was made for, unless the longer grows too long."""
        shortest, longest = model.config.to_json()["image_size"]
        if data.image_size is not None:
            shortest, longest = data.image_size, max(round(data.image_size * longest / shortest), data.image_size)
        return ImageProcessor(
            shortest_edge=shortest, longest_edge=longest, pad=True, mean=IMAGENET["mean"], std=IMAGENET["std"]
        )

    # Rows to loss.

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        found: dict[str, Any] = {"before": np.array(placement.original_size)}
        if row.get("boxes") is not None:
            boxes, keep = self._check(row, placement.original_size)
            classes = [self.number_of(label) for label in row["classes"]]
            if row.get("crowds") is not None:
                keep &= ~np.asarray(row["crowds"], dtype=bool)  # too many to tell apart: nothing to learn from
            found["boxes"] = placement.boxes(boxes[keep])
            found["classes"] = np.array(classes, dtype=np.int64)[keep]
        return found

    def _check(self, row: Row, size: tuple[int, int]) -> tuple[Any, Any]:
        """Boxes cut to the image, and which of them there are; others are told of."""
        boxes = np.asarray(row["boxes"], dtype=np.float32).reshape(-1, 4)
        if len(boxes) != len(row["classes"]):
            raise InputError(f"{row['image'].name} has {len(boxes)} boxes and {len(row['classes'])} classes.")
        inside = clip(torch.from_numpy(boxes), *size)
        bad = is_degenerate(inside).numpy()
        for i in np.flatnonzero(bad):
            self._tell(row["image"].name, boxes[i], size)
        return inside.numpy(), ~bad

    def _tell(self, name: str, box: Any, size: tuple[int, int]) -> None:
        type(self)._left_out += 1
        if self._left_out <= NAMED:
            sides = ", ".join(f"{side:g}" for side in box)
            more = " Others are counted only." if self._left_out == NAMED else ""
            what = f"{sides} of {name}, which has {size[1]} x {size[0]} pixels"
            print(f"Skipped a box that is empty or outside its image: {what}.{more}", file=sys.stderr, flush=True)

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        """Images of one size are not padded, so nothing need be masked."""
        batch = super().collate(examples, generator)
        if "sizes" in batch and bool((batch["sizes"] == torch.tensor(batch["pixels"].shape[-2:])).all()):
            del batch["sizes"]
        return batch

    def collate_targets(self, examples: Sequence[Example]) -> Batch:
        batch = {"before": torch.from_numpy(np.stack([one["before"] for one in examples]))}
        if "boxes" not in examples[0]:
            return batch
        most = max(len(one["classes"]) for one in examples)
        batch["boxes"] = torch.zeros(len(examples), most, 4)
        batch["classes"] = torch.full((len(examples), most), IGNORED)
        for row, one in enumerate(examples):
            batch["boxes"][row, : len(one["boxes"])] = torch.from_numpy(one["boxes"])
            batch["classes"][row, : len(one["classes"])] = torch.from_numpy(one["classes"])
        return batch

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        """Boxes end as centers and sizes in shares of the image, its padding left aside."""
        made = super().ready(batch, generator)
        if "boxes" in made:
            edges = batch["sizes"] if "sizes" in batch else torch.tensor([made["pixel_values"].shape[-2:]])
            scale = edges.flip(1).repeat(1, 2).to(made["boxes"])  # width, height, width, height
            made["boxes"] = to_cxcywh(made["boxes"] / scale[:, None])
        return made

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch)[0]

    def _loss(self, batch: Batch) -> tuple[Loss, Output]:
        out = self.model(**self._pixels(batch), labels=DetectionTargets(batch["classes"], batch["boxes"]))
        n = len(batch["pixel_values"])
        parts = {name: value.detach() * n for name, value in self.layers(out.loss_dict)}
        return Loss(out.loss * n, torch.tensor(n, device=out.loss.device), parts), out

    def layers(self, parts: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The loss of each decoder layer, from the first; and of what the last one's is made."""
        config: Any = self.model.config
        earlier = sum(name.startswith(f"{CLASS}_") for name in parts)
        for i in range(earlier + 1):
            ending = f"_{i}" if i < earlier else ""
            classes, boxes, giou = (parts[f"{name}{ending}"] for name in (CLASS, BOX, GIOU))
            yield f"layer_{i + 1}", classes + config.box_weight * boxes + config.giou_weight * giou
        yield from ((name, parts[name]) for name in (CLASS, BOX, GIOU))

    @staticmethod
    def _pixels(batch: Batch) -> Batch:
        return {name: batch[name] for name in ("pixel_values", "pixel_mask") if name in batch}

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        examples = self.prepared(rows)
        found: dict[int, PredictedBoxes] = {}
        sizes: dict[int, tuple[int, int]] = {}
        total, slots = Total(), []
        with answering(self.model):
            for numbers, batch in self.batches_of(examples, progress=progress):
                loss, out = self._loss(batch)
                total.add(loss)
                assert self.settings.nms is not None  # set when the task was made
                places = [examples.row(int(number)) for number in numbers]
                said = postprocess(detection_head(self.model), out, 0.0, batch["before"])
                sizes |= dict(zip(places, batch["before"].tolist(), strict=True))
                for row, one in zip(places, said, strict=True):
                    found[row] = as_predicted_boxes(tidy(one, sizes[row], self.settings.nms))
                slots.append(out.pred_boxes.float().cpu())
        self.slots = torch.cat(slots)
        figures = self._figures([found[i] for i in found], [self._truth(rows[i], sizes[i]) for i in found])
        return {**figures, "loss": total.mean, **self.skipped()}

    def _figures(self, found: list[PredictedBoxes], truth: list[GroundTruthBoxes]) -> Metrics:
        """While it learns, the quick ones; they are the same."""
        return {**average_precision(found, truth, sizes=False)} if self.lenient else coco_metrics(found, truth)

    def _truth(self, row: Row, size: tuple[int, int]) -> GroundTruthBoxes:
        boxes, keep = self._check(row, size)
        classes = np.array([self.number_of(label) for label in row["classes"]], dtype=np.int64)
        areas, crowds = (row.get(name) for name in ("areas", "crowds"))
        return GroundTruthBoxes.of(
            classes[keep],
            boxes[keep],
            None if areas is None else np.asarray(areas)[keep],
            None if crowds is None else np.asarray(crowds)[keep],
        )

    def answer(
        self, pictures: Sequence[ImageFile], threshold: float | None = None, nms: float | None = None, **options: Any
    ) -> list[Detections]:
        given = {"threshold": threshold, "nms": nms}
        chosen = self.settings.replace(**{name: value for name, value in given.items() if value is not None})
        assert chosen.nms is not None  # as in the settings
        with answering(self.model):
            batch, placed = self.look_at(pictures)
            sizes = [placement.original_size for placement in placed]
            answers = self.model.detect(**self._pixels(batch), target_sizes=sizes, threshold=chosen.threshold)
        return [
            self._things(picture, tidy(found, size, chosen.nms))
            for picture, found, size in zip(pictures, answers, sizes, strict=True)
        ]

    def _things(self, picture: ImageFile, found: Output) -> Detections:
        values = (found[name].tolist() for name in ("labels", "scores", "boxes", "queries"))
        kinds, things = [], []
        for label, score, box, slot in zip(*values, strict=True):
            kinds.append(label)
            things.append(Detection(self.labels[label], score, tuple(box), slot))
        names = [f"{thing.label} {thing.score:.2f}" for thing in things]
        return Detections(
            tuple(things), lambda: draw.boxes(picture.open(), [thing.box for thing in things], names, kinds)
        )

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        epochs = 20 if not fresh else 400 if rows < 1000 else 150
        advice = schedule_for(rows, epochs, size=16, lr=4e-4 if fresh else 2e-5, evals=20, saves=10, weight_decay=1e-4)
        return {**advice, "ema_decay": 0.998 if advice["steps"] > 2000 else 0.0}


def usual_nms(model: Model) -> float:
    """The `task.nms` of a folder that says nothing."""
    return NMS if model.config.to_json().get("anchors") else 1.0


def as_predicted_boxes(one: Output) -> PredictedBoxes:
    labels, scores, boxes = (one[name].cpu().numpy() for name in ("labels", "scores", "boxes"))
    return PredictedBoxes(labels.astype(np.int64), scores.astype(np.float64), boxes.astype(np.float64))
