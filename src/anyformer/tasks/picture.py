"""The common part of image tasks: a processor, parallel decoding, batches of pixels, augmentation on the device,
labels.

A new image task is one file with a subclass of `PictureTask`, listed in `tasks/__init__.py`; `classify_image.py` is the
model. It defines:

- `columns`: the columns of a row, `Column("image")` first. Rows come from `data.images.read` with `image` (an
ImageFile) and what the files contain: label; boxes [n, 4] (left, top, right, bottom in pixels) with classes; keypoints
[n, 3]; mask (an ImageFile); captions. Undeclared columns are dropped; declare extras (id, areas) as optional. With
`objects = True` each COCO annotation is a row (pose). `rows.metadata` has labels, keypoints, bones. - `fits(config)`,
`shape(config, labels, options)`: which recipes fit, and their head; `check(model, path)` for loaded folders.
`make_processor` if the model's image_size does not determine it (DETR: `pad=True`). - `targets(row, placement)`: the
targets of a row as numbers and arrays, in pixels of the resized image: `placement.boxes(row["boxes"])`. `example` adds
the image as `image`, 8 bits [channels, rows, columns]. - `collate_targets(examples)`: tensors of these, padded: boxes
[B, most, 4] with `classes` [B, most] (padding is IGNORED); keypoints [B, keypoints, 3]; mask [B, rows, columns].
Augmentation transforms the tensors with these names; `swaps` holds the mirror image of each keypoint. - `describe()`
and `recall(said)`: what a folder saves besides the labels, such as bones. - `loss(batch)` reads `pixel_values` (and
`pixel_mask` if images are padded) and the targets; `evaluate`; `answer(pictures)` returns a printable prediction for
each, with `draw()`, a PIL image, for `run --out`. - `advice()`: default hyperparameters; `options_class`: a subclass of
`ImageOptions` with a suitable `augment`.

A batch passes three stages: `collate` (CPU, in parallel) stacks 8-bit `pixels`, `ready` (on the device) augments and
normalizes them to `pixel_values`, `loss` runs the model.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from anyformer.checkpoints.resize import resize_images, with_size
from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.data.examples import Example, Examples, Progress
from anyformer.data.files import Paths
from anyformer.data.images.augment import Augmentation, augment
from anyformer.data.images.image_file import ImageError, ImageFile
from anyformer.data.images.processor import FILE, ImageProcessor, ResizeTransform
from anyformer.data.images.read import read_images
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings, class_number, label_of, meanings, rename_labels
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, FolderError, InputError
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Input, Options, Reply, Source, TaskSetup
from anyformer.tasks.decoded import DecodedTask
from anyformer.tasks.text import labels_of

MOST = 50_000  # labels; more than that are no classes
SMALL = 64  # pixels of a side up to which images go through a model by the hundred


@dataclass(frozen=True, kw_only=True)
class ImageOptions(Options):
    augment: Augmentation = Augmentation()  # what happens to images while the model learns


class PictureTask(DecodedTask[Input, Reply]):
    format = "tsv"
    data_sizes = ("image_size",)
    draws = True
    options_class: ClassVar[type[Options]] = ImageOptions
    settings: ImageOptions
    batch = BatchConfig(rows=32)
    objects: ClassVar[bool] = False  # whether each annotation of COCO's is a row
    label_column: ClassVar[str] = "label"  # holds a class's name, or a list of such
    swaps: Tensor | None = None  # which joint each becomes in a mirror; None: not known

    def __init__(
        self, model: Model, processor: ImageProcessor, options: Options | None = None, *, labels: Sequence[str] = ()
    ) -> None:
        self.model, self.processor = model, processor
        chosen: Any = options if options is not None else self.options_class()
        self.settings = chosen
        self.labels = tuple(labels)
        self.index = {label: i for i, label in enumerate(self.labels)}
        self.meaning: Mapping[str, str] = {}  # what the values in the label column stand for

    # From a recipe or a folder to a model that can be trained.

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        labels = cls.find_labels(setup.all_of(rows), options, setup)
        if build.is_folder(source):
            model = load_model(source, device="cpu", dtype=torch.float32)
            model = build.finetune_model(model, cls.fits)
            if not cls.fits(model.config):
                raise FolderError(f"{source} holds a {model.family} model; {cls.name} needs {cls.wanted}.")
            model = build.with_settings(model, setup.model)
            if (side := other_size(model.config, setup.data)) is not None:
                model = resize_images(model, side)
            model, labels = cls.take_further(model, labels, options)
        else:
            config = build.recipe_settings(str(source), setup.model, cls.fits, cls.wanted)
            if (side := other_size(config, setup.data)) is not None:
                config = with_size(config, side)
            model = build.build(str(source), cls.shape(config, labels, options))
        processor = cls.find_processor(model, rows, setup.data)
        if FILE not in model.origin.files or other_size(model.config, setup.data) is not None:
            model.origin.files[FILE] = processor.write()
        cls.name_labels(model, labels)
        task = cls(model, processor, options, labels=labels)
        task.meaning, task.lenient = meanings(setup.data.labels), True
        return task

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        """The settings with the head that the task needs."""
        return config

    @classmethod
    def take_further(cls, model: Model, labels: tuple[str, ...], options: Any) -> tuple[Model, tuple[str, ...]]:
        """A loaded model with that head: its own where it knows these labels already, else a fresh one."""
        known = tuple(model.origin.settings.get("task", {}).get("labels") or labels_of(model))
        same = set(known) == set(labels)
        config = cls.shape(model.config, labels, options)
        changes = {name: getattr(config, name) for name in config.field_names()}
        return build.with_head(model, same, **changes), known if same else labels

    @classmethod
    def find_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> ImageProcessor:
        """The folder's own; else one that suits the model."""
        if FILE in model.origin.files:
            found = ImageProcessor.read(model.origin.files[FILE], FILE)
            side = other_size(model.config, data)
            whole = {"shortest_edge": None, "longest_edge": None, "max_size": None, "crop": None}
            return found if side is None else found.replace(size=(side, side), **whole)
        return cls.make_processor(model, rows, data)

    @classmethod
    def make_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> ImageProcessor:
        """Images squeezed to the size that was asked for, else to the model's own, else to that of the first."""
        size: Any = data.image_size if data.image_size is not None else model_size(model.config)
        if size is None:
            size = 224 if rows is None else min(*first_size(rows), 224)
        size = (size, size) if isinstance(size, int) else tuple(size)
        channels = model.config.to_json().get("n_channels", 3)
        return ImageProcessor(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)

    @classmethod
    def find_labels(cls, rows: Rows, options: Any, setup: TaskSetup) -> tuple[str, ...]:
        """In the order that the files give; else by number where they are numbers, else by the alphabet."""
        if cls.label_column not in rows.columns:
            return ()
        known = rows.metadata.get("labels")
        ordered = [str(one) for one in known] if known else distinct(rows, cls.label_column, setup.data.labels)
        return rename_labels(ordered, setup.data.labels, rows.path)

    @staticmethod
    def name_labels(model: Model, labels: Sequence[str]) -> None:
        """So that a folder for transformers has them too."""
        if labels:
            model.origin.hf_config["id2label"] = {str(i): label for i, label in enumerate(labels)}

    @classmethod
    def around(cls, model: Model, path: Source, options: Mapping[str, Any]) -> Self:
        cls.check(model, path)
        said, chosen = cls.chosen(model, options)
        labels = said.get("labels") or labels_of(model)
        model.optimize()
        task = cls(model, cls.find_processor(model, None, DataSettings()), chosen, labels=labels)
        task.meaning = said.get("meaning", {})
        task.recall(said)
        return task

    def recall(self, said: Mapping[str, Any]) -> None:
        """What else `describe` wrote into the folder."""

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        """An error where the model in a folder has another head than this task reads."""
        if not cls.fits(model.config):
            made_for = model.origin.settings.get("task", {}).get("name")
            other = f" trained for {made_for}" if made_for else ""
            raise FolderError(f"{path} holds a {model.family} model{other}; {cls.name} needs {cls.wanted}.")

    def inferred(self) -> dict[str, str]:
        size = self.processor.fixed
        return {**super().inferred(), **({} if size is None else {"images": f"{size[0]} x {size[1]} pixels"})}

    def describe(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "meaning": dict(self.meaning)}

    # Rows to batches.

    @classmethod
    def find_files(cls, paths: Paths, column: str | None, **asked: Any) -> Rows:
        return read_images(paths, image=column, objects=cls.objects, **asked)

    @classmethod
    def fit(cls, rows: Rows, chosen: Mapping[str, str] = MappingProxyType({})) -> Rows:
        """Of a list without names, the one column beside the images' is what the task wants."""
        wanted = [column.name for column in cls.columns if not column.optional and column.name != "image"]
        if not chosen and len(wanted) == 1 and rows.columns in (("image", "1"), ("image", "2")):
            chosen = {wanted[0]: rows.columns[1]}
        return super().fit(rows, chosen)

    def batches_of(
        self, examples: Examples, settings: BatchConfig | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Index, Batch]]:
        """Small images go through a model by the hundred."""
        small = self.processor.fixed is not None and max(self.processor.fixed) <= SMALL
        return super().batches_of(examples, settings or (BatchConfig(rows=512) if small else self.batch), progress)

    def example(self, row: Row) -> Example:
        image = row["image"].open(self.processor.mode, self.processor.fixed if self.lenient else None)
        pixels, placement = self.processor.resize(image)
        return {"image": pixels, **self.targets(row, placement)}

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        """What the model should say of a row, where the row knows it, in the pixels that the model sees."""
        return {}

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        return {**self.processor.stack([one["image"] for one in examples]), **self.collate_targets(examples)}

    def collate_targets(self, examples: Sequence[Example]) -> Batch:
        return {}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        if generator is not None:
            fixed = batch["pixels"].device.type == "cuda" and "sizes" not in batch  # other sizes would compile again
            batch = augment(batch, self.augmentation, generator, self.swaps, compiled=self.compiled and fixed)
        left = {name: value for name, value in batch.items() if name not in ("pixels", "sizes")}
        return {**self.processor.normalize(batch["pixels"], batch.get("sizes")), **left}

    @property
    def augmentation(self) -> Augmentation:
        found: Augmentation = self.settings.augment
        return found

    def number_of(self, label: Any) -> int:
        """The place of a label that a row has."""
        if (number := class_number(label, self.index, self.meaning)) is None:
            raise InputError(
                f'the label "{label}" is not in the training data. Its labels are: {", ".join(self.labels[:20])}.'
            )
        return number

    # Answers.

    def answers(self, things: list[Any], **options: Any) -> list[Any]:
        """Each a path, bytes, an array or a PIL image."""
        return self.answer([ImageFile.of(one) for one in things], **options)

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[Any]:
        raise NotImplementedError

    def look_at(self, pictures: Sequence[ImageFile]) -> tuple[Batch, list[ResizeTransform]]:
        """Images as the model takes them, on its device, and where their pixels went."""
        placed = [self.processor.resize(picture.open(self.processor.mode)) for picture in pictures]
        stacked = self.processor.stack([pixels for pixels, _ in placed])
        batch = {name: value.to(self.model.device) for name, value in stacked.items()}
        return self.ready(batch, None), [placement for _, placement in placed]


def load_model(path: Source, **where: Any) -> Model:
    from anyformer.checkpoints.folder import load

    return load(path, **where)


def first_size(rows: Rows) -> tuple[int, int]:
    """Width and height of the first image that can be opened."""
    for row in rows:
        with suppress(ImageError):  # training names it
            width, height = row["image"].open().size
            return width, height
    raise DataError(f"None of the images of {rows.path} can be opened.")


def takes_images(config: Settings) -> bool:
    """One at a time: neither clips nor sounds, which have frames; what has mels beside images takes either."""
    names = config.field_names()
    return "image_size" in names and ("n_frames" not in names or "n_mels" in names)


def head_for(config: Settings, *heads: str) -> str | None:
    """The first of these heads that a family has."""
    if "head" not in config.field_names():
        return None
    has = getattr(config, "uses", typing.get_args(config.field_type("head")))
    return next((head for head in heads if head in has), None)


def other_size(config: Settings, data: DataSettings) -> int | None:
    """The side that the user wants images of, of a model that is made for one size."""
    return data.image_size if "image_size" in config.field_names() else None


def model_size(config: Settings) -> Any:
    """(rows, columns) that a model was made for; None where any will do."""
    return config.to_json().get("image_size")


def distinct(rows: Rows, column: str, renamed: str) -> list[str]:
    """The classes that a column names, as data.labels (`renamed`) allows; numbers by value."""
    rows.require_column(column)
    meaning = meanings(renamed)
    found: set[str] = set()
    for i, row in enumerate(rows):
        value = row[column]
        for one in value if isinstance(value, (list, tuple)) else [value]:
            found.add(label_of(one, rows.location(i), meaning))
        if len(found) > MOST:
            raise DataError(f"{rows.path} has more than {MOST:,} different labels, too many for classes.")
    if all(label.lstrip("-").isdigit() for label in found):
        return sorted(found, key=int)
    return sorted(found)
