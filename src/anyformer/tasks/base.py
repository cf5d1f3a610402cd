"""What a task is: rows become examples, examples batches, batches a loss; a model's answers become a figure, and one
thing handed in becomes an answer that prints well.

A new task is one file: a subclass of `Task` that says its columns, its options, and these five steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.batches import Batches, BatchSettings, Index
from anyformer.data.examples import Example, Examples, OnDemand, prepare
from anyformer.data.examples import Progress as Progress
from anyformer.data.files import Paths
from anyformer.data.formats import Row
from anyformer.data.read import Joined, Rows, read, side_by_side
from anyformer.data.settings import DataSettings, TokenizerSettings, pairs
from anyformer.errors import DataError, InputError
from anyformer.model import Model

Batch = dict[str, Tensor]
Figures = dict[str, float | str]
Source = str | PathLike[str]


@dataclass(frozen=True)
class Loss:
    """`total` is a SUM over the `count` things that count, so that batches and devices can be added up before the
    division; `parts` are sums of its parts over the same count."""

    total: Tensor
    count: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """Something that a row must have, with the names that people give such a column."""

    name: str
    also: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """A task's own settings, the `task.*` keys; a task that has some subclasses this."""


@dataclass(frozen=True)
class Setup:
    """Everything that a user may say when a task begins. `model` are the recipe's settings, or those of the folder's
    model, changed by the user; None: as they stand."""

    model: Settings | None = None
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    task: Options | None = None
    whole: Rows | None = None  # all rows, where some of them are held back: labels may stand in those alone

    def all_of(self, rows: Rows) -> Rows:
        return rows if self.whole is None else self.whole


AS_USUAL = Setup()


class Plan(Protocol):
    """The batches of every epoch, as numbers that the task's `gather` understands."""

    @property
    def padding(self) -> float: ...

    def whole(self, n: int) -> Sequence[Index]: ...


class Task:
    """`metric` names the figure of `evaluate` by which one model is better than another."""

    name: ClassVar[str]
    about: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    sides: ClassVar[tuple[str, ...]] = ()  # the columns that plain text files may give side by side
    format: ClassVar[str] = "text"  # of files whose names do not say
    reads: ClassVar[str] = "texts"  # what `run` is given: "texts" (or files that hold one), or "files" as they are
    options_class: ClassVar[type[Options]] = Options
    batch: ClassVar[BatchSettings] = BatchSettings()  # where nobody says how large
    # Whether batches are all of one shape, but for the last of an epoch, and the loss does the same whatever they hold.
    steady: bool = False
    # What may be appended to rows of tokens [rows, tokens] without changing the loss, by name; where everything in a
    # batch is such rows, whole rows may be appended too.
    fills: Mapping[str, int] = MappingProxyType({})
    cached: ClassVar[bool] = True  # whether examples are kept; pictures are decoded when they are asked for

    has_slots: ClassVar[bool] = False  # whether its queries each place a box
    slots: Tensor | None = None  # where they did in the rows evaluated last: [rows, queries, 4], as DETR's pred_boxes

    metric: str
    larger_is_better: bool = True
    detailed: bool = False  # whether `evaluate` gives more than a run needs to see again and again
    smoothing: float = 0.0  # of labels, while training
    compiled: bool = False  # whether what `ready` does is compiled, while training
    model: Model
    settings: Any  # its own options, as chosen

    @classmethod
    def fits(cls, config: Settings) -> bool:
        """Whether a family with such settings can do the work."""
        raise NotImplementedError

    @property
    def longest(self) -> int | None:
        """Tokens that a row may be filled up to while it learns; None: as many as it has."""
        return None

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: Setup = AS_USUAL) -> Self:
        """To be trained on `rows`: from a recipe's name, or from a folder whose model is taken further."""
        raise NotImplementedError

    @classmethod
    def load(
        cls,
        path: Source,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
        weights: str | None = None,
        **options: Any,
    ) -> Self:
        """A folder, ready to answer."""
        from anyformer.weights.folder import load

        return cls.around(load(path, device=device, dtype=dtype, weights=weights), path, options)

    @classmethod
    def around(cls, model: Model, path: Source, options: Mapping[str, Any]) -> Self:
        """The task around a folder's model, with what the folder says of it."""
        raise NotImplementedError

    @classmethod
    def chosen(cls, model: Model, options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """What `save` wrote into the folder, and the options: those given, else those that it was trained with."""
        said = dict(model.origin.settings.get("task", {}))
        kept = {name: value for name, value in said.items() if name in cls.options_class.names()}
        return said, cls.options_class.from_json({**kept, **options})

    def save(self, folder: Source) -> None:
        """Everything needed to run: the model, what came or was made with it, and the task's settings."""
        self.model.origin.settings["task"] = {"name": self.name, **self.describe(), **self.settings.to_json()}
        self.model.save(folder)

    def describe(self) -> dict[str, Any]:
        """What `load` must know beside the options: the names of the labels, say."""
        return {}

    def example(self, row: Row) -> Example:
        return next(iter(self.examples([row])))

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        """Rows prepared: lists of numbers and single numbers; see `data.examples.prepare`."""
        return [self.example(row) for row in rows]

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        """Examples as tensors on the CPU; whatever is drawn is drawn from `generator`."""
        raise NotImplementedError

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        """What is left to do on the model's device: pictures are augmented, by draws from `generator`, a generator of
        that device, and normalised. None: nothing is drawn, for evaluation."""
        return batch

    def carry(self, rows: int) -> dict[str, Tensor]:
        """From now on batches of so many rows go on from one another (see `train.work.Work`)."""
        return {}

    def loss(self, batch: Batch) -> Loss:
        raise NotImplementedError

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Figures:
        """The field's own figures, with the signature where there is one."""
        raise NotImplementedError

    def __call__(self, thing: Any, **options: Any) -> Any:
        """One thing in, one answer out; a list in, a list out."""
        raise NotImplementedError

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        """`train.*` settings that suit the task: for fresh weights, or for some that have learned already."""
        return {}

    # How rows are read, kept and put together; few tasks need their own.

    @classmethod
    def read(cls, paths: Paths, data: DataSettings = AS_USUAL.data) -> Rows:
        """Files as rows with this task's columns. Several sources may each have a form of their own: two parallel files
        and a TSV, say."""
        names = [name for column in cls.columns for name in (column.name, *column.also)]
        chosen = pairs(data.columns, "data.columns")

        def one(source: Paths) -> Rows:
            found = read(
                source, format=data.format, header=_header(data), names=names, sides=cls.sides, default=cls.format
            )
            return cls.fit(found, chosen)

        if isinstance(paths, (str, PathLike)) or len(paths) == 1:
            return one(paths)
        if side_by_side(paths, cls.sides, data.format, cls.format):
            return one(paths)
        return Joined([one(source) for source in paths])

    @classmethod
    def fit(cls, rows: Rows, chosen: Mapping[str, str] = MappingProxyType({})) -> Rows:
        """Rows under this task's names: as chosen, by usual names, or by position where nothing else is said."""
        return fit(rows, cls.columns, chosen, cls.name)

    def key(self) -> str:
        """What examples depend on beside their rows."""
        return f"{self.name}|{json.dumps(self.describe(), sort_keys=True)}|{self.settings}"

    def prepare(self, rows: Rows, cache: Path | None = None, progress: Progress | None = None) -> Examples:
        """Examples of all rows, kept in the `cache` folder where one is given."""
        if not self.cached:
            return OnDemand(rows, self.example)
        key = hashlib.blake2b(self.key().encode(), digest_size=16).hexdigest()
        return prepare(rows, self.examples, cache=cache, key=key, progress=progress)

    def prepared(self, rows: Rows) -> Examples:
        """The same, remembered: rows are evaluated on again and again."""
        if self._last is None or self._last[0] is not rows:
            self._last = (rows, self.prepare(rows))
        return self._last[1]

    _last: tuple[Rows, Examples] | None = None

    def lengths(self, examples: Examples) -> Any:
        """By which examples are put together: [n], or [n, sides]."""
        return examples.lengths

    def plan(self, examples: Examples, settings: BatchSettings, seed: int = 0) -> Plan:
        return Batches(self.lengths(examples), settings, seed)

    def gather(self, examples: Examples, numbers: Sequence[int] | Index) -> list[Example]:
        """The examples that a batch of a plan names."""
        return [examples[int(i)] for i in numbers]

    def row_of(self, examples: Examples, number: int) -> int:
        """The row that an entry of a batch came from."""
        return examples.row(number)

    def batches_of(
        self, examples: Examples, settings: BatchSettings | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Index, Batch]]:
        """Every batch once, in order of length, on the model's device: for evaluation."""
        settings = (settings or self.batch).replace(shuffle=False)
        chance = torch.Generator().manual_seed(0)
        batches = self.plan(examples, settings).whole(0)
        for done, numbers in enumerate(batches):
            batch = self.collate(self.gather(examples, numbers), chance)
            moved = {name: value.to(self.model.device) for name, value in batch.items()}
            yield np.asarray(numbers), self.ready(moved, None)
            if progress is not None:
                progress(done + 1, len(batches))


def fit(rows: Rows, columns: Sequence[Column], chosen: Mapping[str, str], task: str) -> Rows:
    known = [column.name for column in columns]
    for name in chosen:
        if name not in known:
            raise DataError(f'data.columns names "{name}"; {task} has {", ".join(known)}.')
    lower = {column.lower(): column for column in rows.columns}
    found: dict[str, str] = dict(chosen)
    for column in columns:
        names = [lower[name] for name in (column.name, *column.also) if name in lower]
        if column.name not in found and names:
            found[column.name] = names[0]
    needed = [column for column in columns if not column.optional]
    missing = [column for column in needed if column.name not in found]
    if missing and not found and len(rows.columns) == len(needed):
        return rows.rename(dict(zip([column.name for column in needed], rows.columns, strict=True)))
    if missing:
        column = missing[0]
        looked = ", ".join((column.name, *column.also))
        raise DataError(
            f"{rows.path} has no column for the {column.name} (looked for {looked}); it has:"
            f' {", ".join(rows.columns)}. Say which it is: data.columns="{column.name}=NAME".'
        )
    return rows.rename(found)


def _header(data: DataSettings) -> bool | None:
    chosen = pairs(data.columns, "data.columns")
    if data.header is None and any(not name.isdigit() for name in chosen.values()):
        return True  # whoever knows the names has seen them
    return data.header


@contextmanager
def answering(model: Model) -> Iterator[None]:
    """No dropout and no gradients for a while."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


@dataclass
class Total:
    """Losses of many batches, added up."""

    total: float = 0.0
    count: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    def add(self, loss: Loss) -> None:
        self.total += float(loss.total)
        self.count += float(loss.count)
        for name, value in loss.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + float(value)

    @property
    def mean(self) -> float:
        if not self.count:
            raise InputError("There is nothing in the rows that the loss could be counted over.")
        return self.total / self.count
