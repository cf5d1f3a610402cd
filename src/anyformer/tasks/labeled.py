"""Classification of inputs other than text: the common part of audio, clips and sets. A task defines how rows are read,
which reader a model needs, and the features of an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.examples import Example
from anyformer.data.rows import ListRows, Rows
from anyformer.data.settings import DataSettings, class_name, class_number, meanings, rename_labels
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, FolderError, InputError
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.classification import accuracy, f1
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Label
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Input,
    Loss,
    Metrics,
    Options,
    Progress,
    Source,
    TaskSetup,
    answering,
)
from anyformer.tasks.decoded import DecodedTask
from anyformer.tasks.picture import distinct, head_for, load_model
from anyformer.tasks.text import labels_of, softmax_scores


class LabeledTask(DecodedTask[Input, Label]):
    """`reader` computes features; `field` is the model's argument for them."""

    format = "tsv"
    batch = BatchConfig(rows=32)
    metric = "accuracy"
    heads: ClassVar[tuple[str, ...]] = ("classify",)  # of which the first that a family has is used
    column: ClassVar[str]  # that holds the thing

    def __init__(
        self, model: Model, reader: Any, options: Options | None = None, *, labels: Sequence[str] = ()
    ) -> None:
        self.model, self.reader = model, reader
        self.settings = options if options is not None else self.options_class()
        self.labels = tuple(labels)
        self.index = {label: i for i, label in enumerate(self.labels)}
        self.meaning: Mapping[str, str] = {}  # what the values in the label column stand for

    # What a task says.

    @classmethod
    def reads_such(cls, config: Settings) -> bool:
        """Whether a family with such settings takes this kind of thing."""
        raise NotImplementedError

    @classmethod
    def find_reader(cls, model: Model, rows: Rows | None, data: DataSettings) -> Any:
        """The folder's own; else one that suits the model and the rows."""
        raise NotImplementedError

    @classmethod
    def fit_rows(cls, config: Settings, rows: Rows) -> Settings:
        """The settings of a recipe as the rows want them."""
        return config

    def features(self, row: Row) -> dict[str, Any]:
        """What the model reads of a row, as arrays of one shape."""
        raise NotImplementedError

    @classmethod
    def thing(cls, value: Any) -> Any:
        """What a caller hands in, as rows have it."""
        return value

    # From a recipe or a folder to a model that can be trained.

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        options = setup.task if setup.task is not None else cls.options_class()
        labels = cls.find_labels(setup.all_of(rows), setup)
        if build.is_folder(source):
            model = load_model(source, device="cpu", dtype=torch.float32)
            if not cls.fits(model.config):
                raise FolderError(f"{source} holds a {model.family} model; {cls.name} needs {cls.wanted}.")
            model = build.with_settings(model, setup.model)
            known = tuple(model.origin.settings.get("task", {}).get("labels") or labels_of(model))
            labels, same = (known, True) if set(known) == set(labels) else (labels, False)
            config = cls.shape(model.config, labels)
            model = build.with_head(model, same, **{name: getattr(config, name) for name in config.field_names()})
        else:
            config = build.recipe_settings(str(source), setup.model, cls.fits, cls.wanted)
            model = build.build(str(source), cls.shape(cls.fit_rows(config, rows), labels))
        reader = cls.find_reader(model, rows, setup.data)
        model.origin.files.update(reader.write())
        model.origin.hf_config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        task = cls(model, reader, options, labels=labels)
        task.meaning = meanings(setup.data.labels)
        return task

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return cls.reads_such(config) and head_for(config, *cls.heads) is not None

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str]) -> Settings:
        changes: dict[str, Any] = {"head": head_for(config, *cls.heads), "n_labels": len(labels), "problem": None}
        return config.replace(**{name: value for name, value in changes.items() if name in config.field_names()})

    @classmethod
    def find_labels(cls, rows: Rows, setup: TaskSetup) -> tuple[str, ...]:
        known = rows.metadata.get("labels")
        ordered = [str(one) for one in known] if known else distinct(rows, "label", setup.data.labels)
        labels = rename_labels(ordered, setup.data.labels, rows.path)
        if len(labels) < 2:
            raise DataError(f"{rows.path} has one label only, {labels[0]!r}; give rows of two classes or more.")
        return labels

    @classmethod
    def row_classes(cls, rows: Rows, options: Any) -> list[str] | None:
        return [class_name(row["label"]) for row in rows]

    @classmethod
    def around(cls, model: Model, path: Source, options: Mapping[str, Any]) -> Self:
        head = model.config.to_json().get("head")
        if not cls.fits(model.config) or head not in cls.heads:
            other = f' with the head "{head}"' if cls.fits(model.config) else ""
            raise FolderError(f"{path} holds a {model.family} model{other}; {cls.name} needs {cls.wanted}.")
        said, chosen = cls.chosen(model, options)
        reader = cls.find_reader(model, None, DataSettings())
        task = cls(model, reader, chosen, labels=said.get("labels") or labels_of(model))
        task.meaning = said.get("meaning", {})
        return task

    def describe(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "meaning": dict(self.meaning)}

    # Rows to loss.

    def example(self, row: Row) -> Example:
        return {**self.features(row), **({"labels": self.number_of(row["label"])} if "label" in row else {})}

    def number_of(self, label: Any) -> int:
        if (number := class_number(label, self.index, self.meaning)) is None:
            raise InputError(
                f'the label "{label}" is not in the training data. Its labels are: {", ".join(self.labels[:20])}.'
            )
        return number

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        return {name: stack([one[name] for one in examples]) for name in examples[0] if name != "row"}

    def loss(self, batch: Batch) -> Loss:
        return Loss(*token_loss(self.scores(batch), batch["labels"], self.smoothing))

    def scores(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        return logits

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        rows.require_column("label")
        said: list[int] = []
        right: list[int] = []
        total = 0.0
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                logits = self.scores(batch).float()
                total += float(token_loss(logits, batch["labels"])[0])
                said += logits.argmax(dim=1).tolist()
                right += batch["labels"].tolist()
        figures: Metrics = {"accuracy": accuracy(said, right), "f1": f1(said, right, positive=None)}
        return {**figures, "loss": total / len(right), **self.skipped()}

    def answers(self, things: list[Input], **options: Any) -> list[Label]:
        return self.answer([{self.column: self.thing(one)} for one in things])

    def answer(self, rows: list[Row]) -> list[Label]:
        found: list[Label | None] = [None] * len(rows)
        with answering(self.model):
            for numbers, batch in self.batches_of(self.prepare(ListRows(rows, "the things given"))):
                for i, scores in zip(numbers.tolist(), softmax_scores(self.scores(batch)).cpu(), strict=True):
                    found[i] = self._label(scores)
        return [one for one in found if one is not None]

    def _label(self, scores: Tensor) -> Label:
        best = int(scores.argmax())
        return Label(self.labels[best], float(scores[best]), dict(zip(self.labels, scores.tolist(), strict=True)))


def stack(values: Sequence[Any]) -> Tensor:
    return torch.stack([torch.as_tensor(value) for value in values])
