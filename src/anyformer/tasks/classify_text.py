"""Text classification: sentiment, topic, language.

classify = af.task("classify-text", "folder")
print(classify("Lovely film."))         # positive (0.98)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example
from anyformer.data.rows import ListRows, Rows
from anyformer.data.settings import class_name, class_number, label_of, meanings, rename_labels
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, DataError, InputError
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.classification import accuracy, f1, matthews_corrcoef, pearson, spearman
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, CalibratedOptions, best_label
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Column,
    Input,
    Loss,
    Metrics,
    Progress,
    Reply,
    Source,
    TaskSetup,
    answering,
)
from anyformer.tasks.embed import read_sentence_transformer_config
from anyformer.tasks.text import TEXT_PAD_VALUES, TextTask, divergence, labels_of, texts_of

MOST = 1000  # labels; more than that are no classes
OF_NUMBERS = ("pearson", "spearman")


@dataclass(frozen=True)
class RegressionValue(Answer):
    """A predicted number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.2f}"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(CalibratedOptions):
    problem: Literal["auto", "classification", "regression", "choices"] = "auto"  # "auto": from the labels
    metric: Literal["auto", "accuracy", "f1", "matthews", "pearson", "spearman"] = "auto"
    # Which tokens the class is told from; "auto": as a sentence encoder was trained, else as the model has it.
    pooling: Literal["auto", "first", "mean"] = "auto"
    # Each row goes through the model twice, and what the two dropouts make of it must agree: the weight of their
    # divergence in the loss (R-Drop, Liang et al. 2021). It helps where rows are few, at twice the time. 0: once.
    r_drop: float = 0.0

    def check(self) -> None:
        super().check()
        self.require(self.r_drop >= 0, f"r_drop is {self.r_drop}; it must be 0 or more.")


class ClassifyText(TextTask[Input, Reply]):
    name = "classify-text"
    fills = TEXT_PAD_VALUES
    about = "classify texts: sentiment, topic, language"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("text", ("sentence", "review", "content", "body", "document", "tweet", "comment")),
        Column("label", ("labels", "class", "category", "sentiment", "score", "target", "rating", "stars")),
    )
    options_class = ClassifyOptions
    settings: ClassifyOptions
    wanted = "an encoder that supports a classification head"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        if self.settings.problem == "auto":
            self.settings = self.settings.replace(problem=problem_of(self.model))
        self.number = self.settings.problem == "regression"
        if self.settings.r_drop and self.settings.problem != "classification":
            raise InputError(
                f"task.r_drop needs classes, but task.problem is {self.settings.problem}; set task.r_drop=0."
            )
        self.index = {label: i for i, label in enumerate(self.labels)}
        auto = "spearman" if self.number else "accuracy"
        self.metric = auto if self.settings.metric == "auto" else self.settings.metric
        if (self.metric in OF_NUMBERS) != self.number:
            kind = "numbers" if self.number else "classes"
            raise ConfigError(f"task.metric is {self.metric}, but the labels are {kind}. Choose another metric.")

    @classmethod
    def fit(cls, rows: Rows, chosen: Mapping[str, str] = MappingProxyType({})) -> Rows:
        """Of two columns without names, the one with fewer different values holds the labels."""
        if not chosen and rows.columns == ("1", "2"):
            some = [rows[i] for i in range(min(len(rows), 1000))]
            first, second = (len({row[column] for row in some}) for column in rows.columns)
            return rows.rename({"text": "2", "label": "1"} if first < second else {"text": "1", "label": "2"})
        return super().fit(rows, chosen)

    # Which classes there are.

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        if options.problem == "choices" and cls is ClassifyText:
            raise ConfigError("task.problem=choices is for classify-pair; this is classify-text.")
        if options.problem == "auto":
            options = options.replace(problem=cls.find_problem(setup.all_of(rows)))
        if options.pooling == "auto" and is_sentence_encoder(source):
            options = options.replace(pooling="mean")
        task = super().begin(source, rows, valid, replace(setup, task=options))
        task.meaning = meanings(setup.data.labels)
        return task

    meaning: Mapping[str, str] = {}  # what the values in the label column stand for

    @classmethod
    def find_problem(cls, rows: Rows) -> str:
        """Numbers if every label is one and some have a fraction; else classes: 0.0 and 1.0 are two of them."""
        fraction = False
        for row in rows:
            value = row["label"]
            if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not _is_number(value):
                return "classification"
            fraction = fraction or (math.isfinite(float(value)) and not float(value).is_integer())
        return "regression" if fraction else "classification"

    @classmethod
    def find_labels(cls, rows: Rows, options: Any, setup: TaskSetup) -> tuple[str, ...]:
        """The distinct labels, in order: by number where they are numbers, else by the alphabet."""
        if options.problem != "classification":
            return ()
        found: set[str] = set()
        meaning = meanings(setup.data.labels)
        for i, row in enumerate(rows):
            found.add(label_of(row["label"], rows.location(i), meaning))
            if len(found) > MOST:
                raise DataError(
                    f"{rows.path} has more than {MOST:,} different labels, too many for classes."
                    ' Name the label column: data.columns="label=NAME".'
                )
        ordered = sorted(found, key=_order)
        labels = rename_labels(ordered, setup.data.labels, rows.path)
        if len(labels) < 2:
            raise DataError(f'{rows.path} has one label only, "{labels[0]}"; give rows of two classes or more.')
        return labels

    @classmethod
    def row_classes(cls, rows: Rows, options: Any) -> list[str] | None:
        problem = cls.find_problem(rows) if options.problem == "auto" else options.problem
        return [class_name(row["label"]) for row in rows] if problem == "classification" else None

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return build.has_head("classify")(config)

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        if options.pooling != "auto":
            config = config.replace(pooling=options.pooling)
        if options.problem == "regression":
            return config.replace(head="classify", n_labels=1, problem="regression")
        return config.replace(head="classify", n_labels=len(labels), problem=None)

    @classmethod
    def take_further(cls, model: Model, labels: tuple[str, ...], options: Any) -> tuple[Model, tuple[str, ...]]:
        """A head that knows these labels already stays, and so does their order."""
        known = tuple(model.origin.settings.get("task", {}).get("labels") or labels_of(model))
        same = set(known) == set(labels)
        config = cls.shape(model.config, labels, options)
        changes = {name: getattr(config, name) for name in ("head", "n_labels", "problem", "pooling")}
        return build.with_head(model, same or options.problem == "regression", **changes), known if same else labels

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        build.want_head(model, path, ("classify",), gives="classes", task=cls.name)

    @classmethod
    def of(cls, model: Model, tokenizer: Any, path: Source, options: Mapping[str, Any]) -> Any:
        task = super().of(model, tokenizer, path, options)
        task.meaning = model.origin.settings.get("task", {}).get("meaning", {})
        return task

    def inferred(self) -> dict[str, str]:
        label = {"regression": "a number (regression)", "choices": "the right one of the choices"}.get(
            self.settings.problem
        )
        return {**({} if label is None else {"label": label}), **super().inferred()}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "meaning": dict(self.meaning)}

    # Rows to loss.

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        encoded = self.encode(texts_of(rows, "text"))
        return [{**ids, **self.wish(row)} for ids, row in zip(encoded, rows, strict=True)]

    def wish(self, row: Row) -> dict[str, float | int]:
        """What the model should say, where the row knows it."""
        if "label" not in row:
            return {}
        value = row["label"]
        if self.number:
            if not _is_number(value) or not math.isfinite(float(value)):
                raise InputError(f'the label "{value}" is not a number, but task.problem is regression.')
            return {"labels": float(value)}
        if (number := class_number(value, self.index, self.meaning)) is None:
            raise InputError(
                f'the label "{value}" is not in the training data. Its labels are: {", ".join(self.labels[:20])}.'
            )
        return {"labels": number}

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = self.pad(examples)
        if "labels" in examples[0]:
            kind = torch.float32 if self.number else torch.int64
            batch["labels"] = torch.tensor(np.array([example["labels"] for example in examples]), dtype=kind)
        return batch

    def loss(self, batch: Batch) -> Loss:
        logits = self.scores(batch)
        if self.number:
            total = (logits.float().squeeze(-1) - batch["labels"]).square().sum()
            return Loss(total, torch.full((), len(logits), device=logits.device))
        total, count = token_loss(logits, batch["labels"], self.smoothing)
        if self.settings.r_drop == 0 or not self.model.training:
            return Loss(total, count)
        again = self.scores(batch)
        both = (total + token_loss(again, batch["labels"], self.smoothing)[0]) / 2
        return Loss(both + self.settings.r_drop * divergence(logits, again), count)

    def scores(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        return logits

    # Figures and answers.

    def predict(self, rows: Rows, progress: Progress | None = None) -> Tensor:
        """Scores of every row, in order."""
        examples = self.prepared(rows)
        with answering(self.model):
            pieces = [
                (torch.from_numpy(numbers), self.scores(batch).float().cpu())
                for numbers, batch in self.batches_of(examples, progress=progress)
            ]
        found = torch.full((len(examples), max(logits.shape[1] for _, logits in pieces)), float("-inf"))
        for numbers, logits in pieces:
            found[numbers, : logits.shape[1]] = logits
        return found

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        logits = self.predict(rows, progress)
        wanted = torch.from_numpy(np.array(self.prepared(rows).fields["labels"].flat))
        if self.number:
            said, right = logits[:, 0].tolist(), wanted.tolist()
            mean = float((logits[:, 0] - wanted).square().mean())
            return {"pearson": pearson(said, right), "spearman": spearman(said, right), "loss": mean}
        total, count = token_loss(logits, wanted)
        return {**self.figures(logits.argmax(dim=1).tolist(), wanted.tolist()), "loss": float(total / count)}

    def figures(self, said: list[int], right: list[int]) -> Metrics:
        """F1 is the second class's where there are two, as GLUE has it, and the mean over classes else."""
        one = 1 if len(self.labels) == 2 else None
        return {
            "accuracy": accuracy(said, right),
            "f1": f1(said, right, positive=one),
            "matthews": matthews_corrcoef(said, right),
        }

    def answers(self, things: list[Input], **options: Any) -> list[Any]:
        return self.answer([self.row_of_input(one) for one in things])

    def row_of_input(self, thing: Any) -> Row:
        """An input of a call as a row."""
        return {"text": thing}

    def answer(self, rows: list[Row]) -> list[Any]:
        logits = self.predict(ListRows(rows))
        if self.number:
            return [RegressionValue(float(row[0])) for row in logits]
        return [best_label(self.labels, row, self.settings) for row in self.settings.probabilities(logits)]

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        # Three epochs are enough of a large set; a small one is gone through ten times at most.
        few = 10 if fresh else 3
        steps = max(few * rows // 32, min(1000, 10 * rows // 32), 50)
        rate = 5e-4 if fresh else 1e-4
        tenth = max(steps // 10, 1)  # a small set is soon known by heart: the best weights lie somewhere before
        return {
            "batch_size": 32,
            "steps": steps,
            "lr": rate,
            "schedule": "linear",
            "warmup_steps": tenth,
            "eval_every": min(tenth, 500),
        }


def is_sentence_encoder(source: Source) -> bool:
    """Whether a folder of sentence-transformers says that its vectors are means: its first token was never trained."""
    folder = Path(source)
    return (folder / "modules.json").exists() and read_sentence_transformer_config(folder).poolings == ("mean",)


def problem_of(model: Model) -> str:
    """What a model's head answers."""
    settings = model.config.to_json()
    if settings.get("head") == "choice":
        return "choices"
    numeric = settings.get("problem") == "regression" or settings.get("n_labels") == 1
    return "regression" if numeric else "classification"


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _order(label: str) -> tuple[int, float, str]:
    """Numbers by value, then names by the alphabet."""
    number = float(label) if _is_number(label) else math.nan
    return (0, number, label) if math.isfinite(number) else (1, 0.0, label)
