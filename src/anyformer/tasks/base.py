"""Tasks: rows become examples, examples batches, batches a loss; predictions become metrics, and one input becomes a
printable answer.

A new task is one file: a subclass of `Task` with its columns, its options, and these five steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, Self, overload

import numpy as np
import torch
from torch import Generator, Tensor
from typing_extensions import TypeVar

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig, Index, LengthGroupedSampler
from anyformer.data.examples import Example, Examples, LazyExamples, prepare
from anyformer.data.examples import Progress as Progress
from anyformer.data.files import Paths
from anyformer.data.rows import JoinedTables, RenamedRows, Rows, file_columns, read, side_by_side, unused_columns
from anyformer.data.settings import DataSettings, TokenizerSettings, parse_pairs
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, DataError, InputError, nearest, presentable
from anyformer.model import Model
from anyformer.upgrades import COLUMNS, renamed, upgrade

Batch = dict[str, Tensor]
Metrics = dict[str, float | str]
Source = str | PathLike[str]


@dataclass(frozen=True)
class Loss:
    """`total` is the SUM over the `count` targets, so that batches and devices can be added before the division;
    `parts` are sums of its parts over the same count."""

    total: Tensor
    count: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column that rows must have, with alternative names."""

    name: str
    also: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """The options of a task, the `task.*` settings. Tasks with options subclass it."""


@dataclass(frozen=True)
class TaskSetup:
    """What a task is built from. `model` are settings of the recipe, or of the folder's model, with the user's changes;
    None: unchanged."""

    model: Settings | None = None
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    task: Options | None = None
    whole: Rows | None = None  # all rows, where some of them are held back: labels may stand in those alone

    def all_of(self, rows: Rows) -> Rows:
        return rows if self.whole is None else self.whole


DEFAULT_SETUP = TaskSetup()


class BatchPlan(Protocol):
    """The batches of every epoch, as indices for the task's `gather`."""

    @property
    def padding(self) -> float: ...

    def global_batches(self, n: int) -> Sequence[Index]: ...


Input = TypeVar("Input", default=Any)
Reply = TypeVar("Reply", default=Any)


class Task(Generic[Input, Reply]):
    """`metric` is the name of the metric by which checkpoints are compared."""

    name: ClassVar[str]
    about: ClassVar[str]
    wanted: ClassVar[str]  # the kind of model that fits, in words
    columns: ClassVar[tuple[Column, ...]]
    asks: ClassVar[int] = 1  # how many of the columns, the first ones, make a question
    sides: ClassVar[tuple[str, ...]] = ()  # the columns that plain text files may give side by side
    format: ClassVar[str] = "text"  # of files whose names do not say
    reads: ClassVar[str] = "texts"  # what `run` is given: "texts" (or files that hold one), or "files" as they are
    data_sizes: ClassVar[tuple[str, ...]] = ()  # which of data.max_length and data.image_size have an effect
    options_class: ClassVar[type[Options]] = Options
    takes: ClassVar[tuple[str, ...]] = ()  # options of a call
    beside: ClassVar[str | None] = None  # the option of a call that may follow the input without its name
    writes: ClassVar[bool] = False  # whether a call takes those of `model.generate` too, which checks them
    batch: ClassVar[BatchConfig] = BatchConfig()  # where nobody says how large
    # Whether batches are all of one shape, but for the last of an epoch, and the loss does the same whatever they hold.
    steady: bool = False
    # What may be appended to rows of tokens [rows, tokens] without changing the loss, by name; where everything in a
    # batch is such rows, whole rows may be appended too.
    fills: Mapping[str, int] = MappingProxyType({})
    contrastive: bool = False  # whether rows of a batch are one another's negatives
    draws: ClassVar[bool] = False  # whether answers have a method `draw()` that returns a PIL image
    cached: ClassVar[bool] = True  # whether examples are kept; images are decoded when they are asked for

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
    def check_call(cls, given: Iterable[str]) -> None:
        for name in given:
            if cls.writes or name in cls.takes:
                continue
            if name in cls.options_class.field_names():
                raise InputError(f'{cls.name} takes no "{name}" in a call; give it to af.task("{cls.name}", {name}=…).')
            options = (*cls.takes, *cls.options_class.field_names())
            known = f" It takes: {', '.join(cls.takes)}." if cls.takes else " It takes no options."
            raise InputError(f'{cls.name} takes no "{name}".{nearest(name, options)}{known}')

    @classmethod
    def fits(cls, config: Settings) -> bool:
        """Whether a family with such settings can do the work."""
        raise NotImplementedError

    @property
    def longest(self) -> int | None:
        """Tokens that a row may be filled up to while it learns; None: as many as it has."""
        return None

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
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
        from anyformer.checkpoints.folder import load

        return cls.around(load(path, device=device, dtype=dtype, weights=weights), path, options)

    @classmethod
    def around(cls, model: Model, path: Source, options: Mapping[str, Any]) -> Self:
        """The task around a folder's model, with what the folder says of it."""
        raise NotImplementedError

    @classmethod
    def chosen(cls, model: Model, options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """What `save` wrote into the folder, and the options: those given, else those that it was trained with."""
        said = dict(model.origin.settings.get("task", {}))
        return said, cls.options_class.from_json({**cls.saved_options(said), **options})

    @classmethod
    def saved_options(cls, said: Mapping[str, Any]) -> dict[str, Any]:
        """The options among what a folder says of its task. A key that this task does not know is an error, unless
        another task wrote it."""
        from anyformer.checkpoints.folder import TASK

        said = upgrade(cls.options_class, said)
        names = cls.options_class.field_names()
        unknown = [name for name in said if name not in names and name not in TASK]
        if unknown and said.get("name") == cls.name:
            raise ConfigError(
                f'config.json: "task" has the unknown option "{unknown[0]}" of {cls.name}.{nearest(unknown[0], names)}'
            )
        return {name: value for name, value in said.items() if name in names}

    def save(self, folder: Source) -> None:
        """Everything needed to run: the model, what came or was made with it, and the task's settings."""
        self.model.origin.settings["task"] = {"name": self.name, **self.describe(), **self.settings.to_json()}
        self.model.save(folder)

    def inferred(self) -> dict[str, str]:
        """What was found out in the data or the model and not given by the user, in words: classes, pooling, …"""
        labels = getattr(self, "labels", ())
        found = {"classes": f"{len(labels):,} ({listing(labels)})"} if labels else {}
        pooling = pooling_of(self.model)
        return found if pooling is None else {**found, "pooling": pooling}

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
        """What is left to do on the model's device: images are augmented, by draws from `generator`, a generator of
        that device, and normalized. None: nothing is drawn, for evaluation."""
        return batch

    def carry(self, rows: int) -> dict[str, Tensor]:
        """From now on batches of so many rows go on from one another (see `train.work.Work`)."""
        return {}

    def loss(self, batch: Batch) -> Loss:
        raise NotImplementedError

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """The field's own figures, with the signature where there is one."""
        raise NotImplementedError

    @overload
    def __call__(self, thing: list[Input], /, **options: object) -> list[Reply]: ...
    @overload
    def __call__(self, thing: Input, /, *more: object, **options: object) -> Reply: ...
    def __call__(self, *things: object, **options: object) -> object:  # type: ignore[misc]  # mypy wants their names
        """The answer to an input; for a list, a list of answers. A pair may be two arguments, and what goes with an
        input (the texts of match, the question of ask-image) may follow it, as on the command line."""
        self.check_call(options)
        thing, options = self.one_input(things, options)
        return self.respond(thing, **options)

    def one_input(self, things: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments of a call as one input (or a list of them) and options."""
        if len(things) == 1:
            return things[0], options
        if len(things) == 2 and self.beside is not None and self.beside not in options:
            return things[0], {self.beside: things[1], **options}
        if self.takes_pairs() and len(things) == 2:
            return paired(*things), options
        what = "pair" if self.takes_pairs() else "input"
        raise InputError(f"{self.name} takes one {what} or a list of them; give options by name.")

    @classmethod
    def takes_pairs(cls) -> bool:
        """Whether an input is a pair of texts."""
        return cls.asks == 2 and cls.beside is None

    def respond(self, thing: Any, **options: Any) -> Any:
        """The answer to one input, or those to a list."""
        if not isinstance(thing, list):
            return self.answers([thing], **options)[0]
        return self.answers(thing, **options) if thing else []

    def answers(self, things: list[Input], **options: Any) -> Sequence[Any]:
        """An answer for each of the inputs, of which there is one or more."""
        raise NotImplementedError

    @classmethod
    def row_classes(cls, rows: Rows, options: Any) -> list[str] | None:
        """The class of every row, by which rows to evaluate on are stratified; None if rows have none."""
        return None

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        """`train.*` settings that suit the task: for fresh weights, or for some that have learned already."""
        return {}

    # How rows are read, kept and put together; few tasks need their own.

    @classmethod
    def read(cls, paths: Paths, data: DataSettings = DEFAULT_SETUP.data) -> Rows:
        """Files as rows with this task's columns. Several sources may each have a form of their own: two parallel files
        and a TSV, say."""
        chosen = parse_pairs(data.columns, "data.columns")

        def one(source: Paths) -> Rows:
            return cls.fit(cls.open(source, data), chosen)

        if isinstance(paths, (str, PathLike)) or len(paths) == 1:
            return one(paths)
        if side_by_side(paths, cls.sides, data.format, cls.format):
            return one(paths)
        return JoinedTables([one(source) for source in paths])

    @classmethod
    def open(cls, paths: Paths, data: DataSettings) -> Rows:
        """Files as rows with the columns that they have."""
        names = column_names(cls.columns)
        return read(paths, format=data.format, header=header_of(data), names=names, sides=cls.sides, default=cls.format)

    @classmethod
    def fit(cls, rows: Rows, chosen: Mapping[str, str] = MappingProxyType({})) -> Rows:
        """Rows under this task's names: as chosen, by usual names, or by position where nothing else is said."""
        rows, columns = cls.layout(rows, chosen)
        return fit(rows, columns, chosen, cls.name)

    @classmethod
    def layout(cls, rows: Rows, chosen: Mapping[str, str]) -> tuple[Rows, Sequence[Column]]:
        """The rows, and the columns that they should have."""
        return rows, cls.columns

    @classmethod
    def questions(cls, rows: Rows, chosen: Mapping[str, str]) -> Rows:
        """The columns of a question (the first `asks`) of rows that need not have the others: by name, or by position
        as in rows to train on if the columns have no names."""
        laid, columns = cls.layout(rows, chosen)
        asked = [column.name for column in columns[: cls.asks]]
        by_position = len(laid.columns) > len(asked) and all(name.isdigit() for name in laid.columns)
        if by_position and not chosen.keys() & {*asked}:
            found = cls.fit(rows, chosen)
        else:
            others = [column.name for column in columns[cls.asks :]]
            some = {ours: theirs for ours, theirs in chosen.items() if ours not in others}
            found = fit(
                laid, [replace(one, optional=one.optional or one.name not in asked) for one in columns], some, cls.name
            )
        assert isinstance(found, RenamedRows)
        return RenamedRows(found.rows, {name: found.names[name] for name in asked if name in found.names})

    def key(self) -> str:
        """What examples depend on beside their rows."""
        return f"{self.name}|{json.dumps(self.describe(), sort_keys=True)}|{self.settings}"

    def prepare(self, rows: Rows, cache: Path | None = None, progress: Progress | None = None) -> Examples:
        """Examples of all rows, kept in the `cache` folder where one is given."""
        if not self.cached:
            return LazyExamples(rows, self.example)
        key = hashlib.blake2b(self.key().encode(), digest_size=16).hexdigest()
        return prepare(rows, self.examples, cache=cache, key=key, progress=progress)

    def prepared(self, rows: Rows) -> Examples:
        """The same, remembered: rows are evaluated on again and again."""
        if self._last is None or self._last[0] is not rows:
            self._last = (rows, self.prepare_to_evaluate(rows))
        return self._last[1]

    def prepare_to_evaluate(self, rows: Rows) -> Examples:
        return self.prepare(rows)

    _last: tuple[Rows, Examples] | None = None

    def lengths(self, examples: Examples) -> Any:
        """By which examples are put together: [n], or [n, sides]."""
        return examples.lengths

    def plan(self, examples: Examples, settings: BatchConfig, seed: int = 0) -> BatchPlan:
        return LengthGroupedSampler(self.lengths(examples), settings.replace(min_rows=self.min_rows(examples)), seed)

    def min_rows(self, examples: Examples) -> int:
        """The fewest rows of a batch that teach something: two if they are one another's negatives."""
        return 2 if self.contrastive else 1

    def gather(self, examples: Examples, numbers: Sequence[int] | Index) -> list[Example]:
        """The examples that a batch of a plan names."""
        return [examples[int(i)] for i in numbers]

    def row_of(self, examples: Examples, number: int) -> int:
        """The row that an entry of a batch came from."""
        return examples.row(number)

    def origins(self, examples: Sequence[Example], numbers: Index) -> Index:
        """The numbers of examples that were gathered by `numbers`; fewer if some could not be read."""
        return numbers

    def batches_of(
        self, examples: Examples, settings: BatchConfig | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Index, Batch]]:
        """Every batch once, in order of length, on the model's device, with the numbers of the examples that are in
        it: for evaluation."""
        settings = (settings or self.batch).replace(shuffle=False)
        chance = torch.Generator().manual_seed(0)
        batches = self.plan(examples, settings).global_batches(0)
        for done, numbers in enumerate(batches):
            if some := self.gather(examples, numbers):
                batch = self.collate(some, chance)
                moved = {name: value.to(self.model.device) for name, value in batch.items()}
                yield self.origins(some, np.asarray(numbers)), self.ready(moved, None)
            if progress is not None:
                progress(done + 1, len(batches))


def paired(first: Any, second: Any) -> Any:
    """Two arguments as a pair; two lists as a list of pairs."""
    if not (isinstance(first, list) and isinstance(second, list)):
        return first, second
    if len(first) != len(second):
        raise InputError(f"The two lists have {len(first)} and {len(second)} entries; they must be of equal length.")
    return list(zip(first, second, strict=True))


def fit(rows: Rows, columns: Sequence[Column], chosen: Mapping[str, str], task: str) -> Rows:
    known = [column.name for column in columns]
    for name in chosen:
        if name not in known:
            today = COLUMNS.get(name, name)
            hint = renamed(name, today) if today in known else nearest(name, known)
            raise DataError(f'data.columns names "{name}"; {task} has {", ".join(known)}.{hint}')
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
            f"{rows.path} has no {column.name} column (looked for {looked}); it has:"
            f' {", ".join(rows.columns)}. Name it: data.columns="{column.name}=NAME" (eval and run: --columns).'
        )
    return rows.rename(found)


def column_names(columns: Iterable[Column]) -> list[str]:
    """All names that these columns may have in a file."""
    return [name for column in columns for name in (column.name, *column.also)]


def header_of(data: DataSettings) -> bool | None:
    """Whether files begin with names; None if it must be detected."""
    chosen = parse_pairs(data.columns, "data.columns")
    if data.header is None and any(not name.isdigit() for name in chosen.values()):
        return True  # whoever knows the names has seen them
    return data.header


def listing(names: Sequence[str], most: int = 20) -> str:
    """Names with commas, at most so many."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def spell_columns(rows: Rows) -> str:
    """text from "sentence", label; not used: id"""
    named = file_columns(rows).items()
    parts = [role if names == (role,) else f"{role} from {_spelled(names)}" for role, names in named]
    unused = unused_columns(rows)
    return f"{', '.join(parts)}{f'; not used: {listing(unused)}' if unused else ''} ({rows.path})"


def spell_header(rows: Rows) -> str | None:
    """The first line of a table in which no header was detected, in words; None of any other rows."""
    if "first_line" not in rows.metadata:
        return None
    cells = [cell if len(cell) <= 30 else f"{cell[:29]}…" for cell in rows.metadata["first_line"]]
    return (
        f'none detected, so the first line is a row: "{presentable(listing(cells, 5))}" (if it has the column names:'
        " data.header=true; eval and run: --columns)"
    )


def _spelled(names: tuple[str, ...]) -> str:
    """Columns by name, or by number if the file has no names."""
    return " and ".join(f"column {name}" if name.isdigit() else f'"{name}"' for name in names)


def spell_device(model: Model) -> str:
    """cpu, float32"""
    return f"{model.device}, {str(model.dtype).removeprefix('torch.')}"


POOLING = {
    "class": "the class token",
    "cls": "the first token",
    "end": "the end token",
    "first": "the first token",
    "last": "the last token",
    "max": "the maximum over the tokens",
    "mean": "the mean of the tokens",
}


def pooling_of(model: Model) -> str | None:
    """How a classifier makes one vector of its tokens, in words; None if the model is not one."""
    settings = model.config.to_json()
    if not str(settings.get("head", "")).startswith("classify"):
        return None
    mode = settings.get("pooling")
    return None if mode is None else POOLING.get(mode, str(mode))


@contextmanager
def answering(model: Model) -> Iterator[None]:
    """No dropout and no gradients for a while."""
    training, mixed = model.training, any(part.training for part in model.modules())
    if mixed:  # else there is nothing to switch, and what was made of the weights is kept
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if mixed:
            model.train(training)


@dataclass
class Total:
    """A sum of losses over batches."""

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
            raise InputError("The rows have no target for the loss.")
        return self.total / self.count
