"""Semantic segmentation.

segment = af.task("segment", "folder")
print(segment("street.jpg"))            # road 41% · building 30% · person 4%
segment("street.jpg").draw()            # the classes in colors over the image
segment("street.jpg").classes           # [rows, columns], numbers of `names`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example
from anyformer.data.images import draw
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.coco_masks import semantic_mask
from anyformer.data.images.image_file import CLASSES, ImageError, ImageFile
from anyformer.data.images.processor import FILE, ResizeTransform
from anyformer.data.rows import Rows
from anyformer.data.settings import parse_pairs
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, DataError, InputError
from anyformer.forward_context import Output
from anyformer.heads.convolutions import resize
from anyformer.heads.segment import IGNORED_CLASS
from anyformer.jsonfile import parse_json, parse_object
from anyformer.metrics import segmentation
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, Drawing
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Column,
    Loss,
    Metrics,
    Options,
    Progress,
    Source,
    TaskSetup,
    answering,
)
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture import ImageOptions, PictureTask, head_for
from anyformer.tasks.schedule_presets import schedule_for

HEADS = ("mask", "linear", "segment")
NOTHING = frozenset(("unlabeled", "unlabelled", "void", "ignore", "ignored"))  # names of classes that are none
BACKGROUND = "background"
LISTS = ("*classes*.json", "*classes*.txt", "id2label.json")  # what may lie beside the data and name the classes
FEW = 0.005  # the share of an image below which a class is not printed


@dataclass(frozen=True)
class Segmentation(Answer):
    """`classes` [rows, columns] are indices of `names`."""

    classes: Any = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    shares: Mapping[str, float]
    draw: Drawing = field(repr=False, compare=False)

    def __str__(self) -> str:
        large = {name: share for name, share in self.shares.items() if share >= FEW}
        return " · ".join(f"{name} {100 * share:.0f}%" for name, share in large.items())


@dataclass(frozen=True, kw_only=True)
class SegmentOptions(ImageOptions):
    augment: Augmentation = Augmentation(crop=(0.4, 1.2), flip=0.5, color_jitter=0.3)


class Segment(PictureTask[ImageInput, Segmentation]):
    name = "segment"
    about = "classify every pixel of an image (semantic segmentation)"
    columns = (
        Column("image"),
        Column("mask", ("semantic_mask", "annotation", "label"), optional=True),
        Column("segments", optional=True),
        Column("classes", optional=True),
    )
    options_class = SegmentOptions
    settings: SegmentOptions
    metric = "mean_iou"
    steady = True
    wanted = "a segmentation model, such as segmenter-mini or beit-b16-segment"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        said = parse_object(self.model.origin.files.get(FILE, b"{}"), FILE)
        first = int(bool(said.get("do_reduce_labels", said.get("reduce_labels", False))))
        self.ids = tuple(range(first, first + len(self.labels)))  # what stands in masks for each class

    # Which rows and which classes there are.

    @classmethod
    def fit(cls, rows: Rows, chosen: Mapping[str, str] = MappingProxyType({})) -> Rows:
        """Rows that say something of their pixels; an image without a mask, where others have one, is left out."""
        fitted = super().fit(rows, chosen)
        if "mask" in fitted.columns:
            whole = [i for i in range(len(fitted)) if fitted[i]["mask"] is not None]
            return fitted if len(whole) == len(fitted) else fitted.select(np.array(whole, dtype=int))
        return fitted

    @classmethod
    def find_labels(cls, rows: Rows, options: Options, setup: TaskSetup) -> tuple[str, ...]:
        return tuple(cls.find_classes(rows, setup).values())

    @classmethod
    def find_classes(cls, rows: Rows, setup: TaskSetup) -> dict[int, str]:
        """What stands in masks -> the name of the class. As data.labels says, or a list beside the data; of outlines
        the categories, and the background; else the numbers that occur."""
        if "mask" not in rows.columns:
            if "segments" not in rows.columns or not rows.metadata.get("labels"):
                raise DataError(f"{rows.path} has neither masks nor segmentations; segment needs one of them.")
            return dict(enumerate((BACKGROUND, *(str(name) for name in rows.metadata["labels"]))))
        said = {int(number): name for number, name in parse_pairs(setup.data.labels, "data.labels").items()}
        found = said or _listed(rows.path) or _occurring(rows)
        kept = {number: name for number, name in found.items() if name.lower() not in NOTHING}
        if len(kept) < 2:
            raise DataError(f"The masks of {rows.path} have {len(kept)} classes; give masks with two classes or more.")
        return kept

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        found = cls.find_classes(setup.all_of(rows), setup)
        task = super().begin(source, rows, valid, setup)
        numbers = {name: number for number, name in found.items()}
        task.ids = tuple(numbers[label] for label in task.labels)
        task.meaning = {}
        return task

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return head_for(config, *HEADS) is not None and "n_labels" in config.field_names()

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: SegmentOptions) -> Settings:
        has = config.to_json()["head"]
        return config.replace(head=has if has in HEADS else head_for(config, *HEADS), n_labels=len(labels))

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        super().check(model, path)
        build.want_head(model, path, HEADS, gives="classes of pixels", task=cls.name)

    def describe(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "ids": list(self.ids)}

    def recall(self, said: Mapping[str, Any]) -> None:
        self.ids = tuple(said.get("ids", self.ids))
        if len(self.ids) != len(self.labels):
            raise ConfigError(
                f'config.json: "task" has {len(self.ids)} "ids" and {len(self.labels)} "labels"; give one for each.'
            )

    # Rows to loss.

    def truth(self, row: Row, size: tuple[int, int]) -> Any:
        """[rows, columns]: the place of each pixel's class among the labels, `ignore` where it has none."""
        if row.get("mask") is None:
            numbers = [self.number_of(name) for name in row["classes"]]
            return semantic_mask(row["segments"], numbers, *size, nothing=self.index.get(BACKGROUND, self.ignore))
        picture: ImageFile = row["mask"]
        values = np.asarray(picture.open(CLASSES)).astype(np.int64)
        if values.ndim != 2:
            raise InputError(
                f"the mask {picture.name} has colors; it must have one channel with the class of each pixel."
            )
        if values.shape != size:
            raise InputError(
                f"the mask {picture.name} has {values.shape[1]} x {values.shape[0]} pixels; its image has"
                f" {size[1]} x {size[0]}."
            )
        return self.numbers(values, picture.name)

    def numbers(self, values: Any, name: str) -> Any:
        most = max(*self.ids, IGNORED_CLASS)
        table = np.full(most + 2, -1, dtype=np.int64)  # its last: whatever is no class
        table[list(self.ids)] = np.arange(len(self.ids))
        for number in (0, IGNORED_CLASS):  # unlabeled, unless a class has that name
            table[number] = self.ignore if table[number] < 0 else table[number]
        made = table[np.clip(values, -1, most + 1)]
        if made.size and int(made.min()) < 0:
            number = int(values[made < 0][0])
            raise InputError(
                f"the mask {name} has the value {number}, which is not one of the {len(self.ids)} classes from"
                f" {min(self.ids)} to {max(self.ids)}. Name them in data.labels, or in a classes.json beside the data."
            )
        return made

    @property
    def ignore(self) -> int:
        return int(getattr(self.model.config, "ignore", IGNORED_CLASS))

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        if row.get("mask") is None and row.get("segments") is None:
            return {}
        made = self.truth(row, placement.original_size).astype(np.int32)
        return {"mask": self.processor.resize_mask(made, fill=self.ignore).astype(np.int16)}

    def collate_targets(self, examples: Sequence[Example]) -> Batch:
        if "mask" not in examples[0]:
            return {}
        return {"mask": torch.from_numpy(np.stack([one["mask"] for one in examples])).long()}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        batch = super().ready(batch, generator)
        if "mask" in batch:
            mask = batch.pop("mask")
            batch["labels"] = torch.where(mask < 0, self.ignore, mask)
        return batch

    def loss(self, batch: Batch) -> Loss:
        return self._sum(self.model(pixel_values=batch["pixel_values"], labels=batch["labels"]), batch)

    def _sum(self, out: Output, batch: Batch) -> Loss:
        """Of the pixels that count; a batch where none does has a loss of 0."""
        count = (batch["labels"] != self.ignore).sum().clamp(min=1)
        return Loss(torch.nan_to_num(out.loss) * count, count)

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """At the size of the masks as they are."""
        n = len(self.labels)
        counts, total, count = np.zeros((n, n), dtype=np.int64), 0.0, 0.0
        examples = self.prepared(rows)
        with answering(self.model):
            for numbers, batch in self.batches_of(examples, progress=progress):
                if "labels" not in batch:
                    raise DataError(f"{rows.path} has neither masks nor segmentations for evaluation.")
                out = self.model(pixel_values=batch["pixel_values"], labels=batch["labels"])
                loss = self._sum(out, batch)
                total, count = total + float(loss.total), count + float(loss.count)
                for i, one in zip(numbers, out.logits.float(), strict=True):
                    row = rows[self.row_of(examples, int(i))]
                    right = self.truth(row, _size(row["image"]))
                    counts += segmentation.pixel_confusion(self.classes_of(one, right.shape), right, n, self.ignore)
        return {**segmentation.segmentation_metrics(counts), "loss": total / max(count, 1.0), **self.skipped()}

    @staticmethod
    def classes_of(logits: Tensor, size: tuple[int, int]) -> Any:
        """[classes, rows, columns] -> the best class of each pixel of an image of that size."""
        return resize(logits.unsqueeze(0), size)[0].argmax(dim=0).cpu().numpy()

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[Segmentation]:
        with answering(self.model):
            batch, placements = self.look_at(pictures)
            logits = self.model(pixel_values=batch["pixel_values"]).logits.float()
        found = [self.classes_of(one, where.original_size) for one, where in zip(logits, placements, strict=True)]
        return [self._answer(*pair) for pair in zip(pictures, found, strict=True)]

    def _answer(self, picture: ImageFile, classes: Any) -> Segmentation:
        numbers, counts = np.unique(classes, return_counts=True)
        order = np.argsort(-counts)
        shares = {self.labels[int(numbers[i])]: float(counts[i] / counts.sum()) for i in order}
        names = self.labels
        nothing = [self.index[BACKGROUND]] if BACKGROUND in self.index else []
        return Segmentation(classes, names, shares, lambda: draw.mask(picture.open(), classes, names, nothing))

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        epochs, lr = (200, 5e-4) if fresh else (30, 5e-5)
        return schedule_for(rows, epochs, size=16, least=300, most=100_000, lr=lr, evals=10, saves=5, weight_decay=0.05)


def _size(image: ImageFile) -> tuple[int, int]:
    width, height = image.open().size
    return height, width


def _listed(path: str) -> dict[int, str]:
    """The names in a file beside the data: {"1": "person"}, ["person", …], or one a line."""
    home = Path(path.split(" and ")[0]).parent
    for pattern in LISTS:
        for file in sorted(home.glob(pattern)):
            text = file.read_text(encoding="utf-8")
            try:
                whole = parse_json(text, str(file), error=DataError) if file.suffix == ".json" else text.split("\n")
                names = whole.items() if isinstance(whole, dict) else enumerate(whole)
                return {int(number): str(name) for number, name in names if str(name)}
            except (ValueError, TypeError, OverflowError):
                raise DataError(f'{file} has no class names; write {{"1": "person", "2": "car"}}.') from None
    return {}


def _occurring(rows: Rows) -> dict[int, str]:
    found: set[int] = set()
    for i in range(len(rows)):
        with suppress(ImageError):  # training names it
            found |= {int(number) for number in np.unique(np.asarray(rows[i]["mask"].open(CLASSES)))}
    return {number: str(number) for number in sorted(found - {IGNORED_CLASS})}
