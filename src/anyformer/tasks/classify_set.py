"""Classification of unordered inputs: sets of points, and rows of tables.

classify = af.task("classify-set", "folder")
print(classify([[0.1, 0.2, 0.9], [0.3, 0.1, 0.4]]))         # chair (0.81)
print(classify({"age": 41, "job": "nurse"}))                # yes (0.66)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.arrays import ends_of, labels_of, read_arrays
from anyformer.data.examples import Example
from anyformer.data.files import Paths
from anyformer.data.images.read import JoinedImageRows
from anyformer.data.images.read import expand as expand_paths
from anyformer.data.rows import ListRows, Rows, read
from anyformer.data.settings import DataSettings, parse_pairs
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, FolderError, InputError
from anyformer.jsonfile import parse_json, parse_object
from anyformer.model import Model
from anyformer.schema import check_value
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Column, listing
from anyformer.tasks.inputs import SetInput
from anyformer.tasks.labeled import LabeledTask
from anyformer.tasks.schedule_presets import schedule_for

FILE = "preprocessor_config.json"
FAR = 1e30  # beyond which a number is none in float32
LABELS = ("labels", "class", "target", "category", "y")


def _check_scales(reader: Settings, means: Sequence[float], stds: Sequence[float]) -> None:
    reader.require(len(means) == len(stds), "means and stds must have equal lengths.")
    reader.require(all(std > 0 for std in stds), "stds must be above 0.")


@dataclass(frozen=True, kw_only=True)
class TableReader(Settings):
    """Numbers are standardized, categories mapped to indices; unknown values are treated as missing."""

    numbers: tuple[str, ...] = ()
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    values: dict[str, list[str]]

    def check(self) -> None:
        _check_scales(self, self.means, self.stds)
        self.require(len(self.numbers) == len(self.means), "numbers and means must have equal lengths.")
        self.require(set(self.values) == set(self.categories), "values must hold a list for each of categories.")

    @classmethod
    def measure(cls, rows: Rows) -> TableReader:
        columns: dict[str, list[Any]] = {}
        for i, row in enumerate(rows):
            if not isinstance(row["set"], Mapping):
                raise DataError(f"{rows.location(i)}, is a set of points; this recipe needs rows of a table.")
            for name, value in row["set"].items():
                columns.setdefault(name, []).append(value)
        numeric = {name: column for name, values in columns.items() if (column := _numbers(values)) is not None}
        others = {name: sorted({str(v) for v in values if v not in ("", None)}) for name, values in columns.items()}
        return cls(
            numbers=tuple(numeric),
            means=tuple(float(np.nanmean(column)) for column in numeric.values()),
            stds=tuple(float(np.nanstd(column)) or 1.0 for column in numeric.values()),
            categories=tuple(name for name in columns if name not in numeric),
            values={name: values for name, values in others.items() if name not in numeric},
        )

    def __call__(self, row: Any) -> dict[str, Any]:
        if not isinstance(row, Mapping):
            raise InputError(f"This model takes a row of a table; give a mapping with {', '.join(self.names_of())}.")
        unknown = [name for name in row if name not in self.names_of()]
        if unknown:
            raise InputError(
                f'There is no column "{unknown[0]}" in the training data. It has: {", ".join(self.names_of())}.'
            )
        if not row:
            raise InputError(f"The row is empty; give {', '.join(self.names_of())}.")
        made: dict[str, Any] = {}
        if self.numbers:
            for name in self.numbers:
                value = row.get(name)
                if value not in (None, "") and not abs(_number(value)) < FAR:
                    raise InputError(f'the {name} is "{value}"; it must be a number that float32 can represent.')
            read = [_number(row.get(name)) for name in self.numbers]
            made["numbers"] = np.array(
                [(value - mean) / std for value, mean, std in zip(read, self.means, self.stds, strict=True)], np.float32
            )
        if self.categories:
            places = {name: {value: i for i, value in enumerate(values)} for name, values in self.values.items()}
            made["categories"] = np.array([places[name].get(str(row.get(name)), -1) for name in self.categories])
        return made

    def names_of(self) -> tuple[str, ...]:
        return (*self.numbers, *self.categories)

    def write(self) -> dict[str, bytes]:
        return {FILE: json.dumps({"reader": "table", **self.to_json()}, indent=2).encode()}


@dataclass(frozen=True, kw_only=True)
class SetReader(Settings):
    """Items whose numbers are standardized."""

    means: tuple[float, ...]
    stds: tuple[float, ...]

    def check(self) -> None:
        _check_scales(self, self.means, self.stds)

    @classmethod
    def measure(cls, rows: Rows) -> SetReader:
        sizes = {np.shape(row["set"])[-1] if np.ndim(row["set"]) == 2 else -1 for row in rows}
        if len(sizes) > 1 or -1 in sizes:
            raise DataError(
                f"{rows.path} has no sets of points of shape [items, numbers] with a constant number of numbers."
            )
        every = np.concatenate([np.asarray(row["set"], dtype=np.float64) for row in rows])
        return cls(means=tuple(every.mean(axis=0).tolist()), stds=tuple(float(std) or 1.0 for std in every.std(axis=0)))

    def __call__(self, items: Any) -> dict[str, Any]:
        values = np.asarray(items, dtype=np.float32)
        if values.ndim != 2 or values.shape[1] != len(self.means) or not len(values):
            wanted = f"[items, {len(self.means)}], one item or more"
            raise InputError(f"A set has shape {list(values.shape)}; it must be {wanted}.")
        if not np.isfinite(values).all():
            raise InputError("A set has numbers that are NaN or infinite.")
        means, stds = np.array(self.means, dtype=np.float32), np.array(self.stds, dtype=np.float32)
        return {"items": (values - means) / stds}

    def write(self) -> dict[str, bytes]:
        return {FILE: json.dumps({"reader": "set", **self.to_json()}, indent=2).encode()}


READERS: dict[str, type[TableReader] | type[SetReader]] = {"table": TableReader, "set": SetReader}


class ClassifySet(LabeledTask[SetInput]):
    name = "classify-set"
    about = "classify sets of points or rows of a table"
    columns = (Column("set"), Column("label", LABELS))
    heads = ("classify", "classify-set")
    column = "set"
    reads = "texts"
    format = "csv"
    wanted = "a model of sets or tables, such as set-transformer-small, perceiver-set or ft-transformer-base"

    @classmethod
    def thing(cls, value: Any) -> Any:
        """At the command line, JSON: a list of items, or a row's columns by name."""
        if not isinstance(value, str):
            return value
        forms = '[[0.1, 2], [3, 4]] or {"age": 33}'
        return parse_json(value, f"A set or a row, such as {forms},", error=InputError)

    @classmethod
    def reads_such(cls, config: Settings) -> bool:
        return reads_tables(config) or "d_item" in config.field_names()

    @classmethod
    def read(cls, paths: Paths, data: DataSettings = DEFAULT_SETUP.data) -> Rows:
        label = parse_pairs(data.columns, "data.columns")
        parts = [
            read_sets(path) if path.suffix.lower() == ".npz" else _labeled(cls.open(path, data), label)
            for path in expand_paths(paths)
        ]
        return parts[0] if len(parts) == 1 else JoinedImageRows(parts)

    @classmethod
    def find_files(cls, paths: Paths, column: str | None, **asked: Any) -> Rows:
        return read(paths, default=cls.format, **asked)

    @classmethod
    def questions(cls, rows: Rows, chosen: Mapping[str, str]) -> Rows:
        """Every column but the label's, which need not be there."""
        label = _label_column(rows, chosen)
        made = [{"set": {name: value for name, value in row.items() if name != label}} for row in rows]
        return ListRows(made, rows.path)

    @classmethod
    def fit_rows(cls, config: Settings, rows: Rows) -> Settings:
        if reads_tables(config):
            table = TableReader.measure(rows)
            sizes = tuple(len(table.values[name]) for name in table.categories)
            return config.replace(n_numbers=len(table.numbers), categories=sizes)
        return config.replace(d_item=len(SetReader.measure(rows).means))

    @classmethod
    def find_reader(cls, model: Model, rows: Rows | None, data: DataSettings) -> Any:
        if FILE in model.origin.files:
            held = parse_object(model.origin.files[FILE], FILE)
            kind = "table" if reads_tables(model.config) else "set"
            check_value("reader", held.pop("reader", None), Literal[kind], FILE)
            return READERS[kind].from_json(held)
        if rows is None:
            raise FolderError(
                f"The folder has no {FILE}, the normalization of its inputs; train the model with anyformer."
            )
        return (TableReader if reads_tables(model.config) else SetReader).measure(rows)

    def inferred(self) -> dict[str, str]:
        kinds = {name: listing(getattr(self.reader, name, ())) for name in ("numbers", "categories")}
        return {**{name: columns for name, columns in kinds.items() if columns}, **super().inferred()}

    def features(self, row: Row) -> dict[str, Any]:
        made: dict[str, Any] = self.reader(row["set"])
        return made

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        if "items" not in examples[0]:
            return super().collate(examples, generator)
        items, mask = pad_sets([one["items"] for one in examples])
        known = "labels" in examples[0]
        labels = {"labels": torch.tensor([one["labels"] for one in examples])} if known else {}
        return {"items": items, "attention_mask": mask, **labels}

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        size, lr = 128 if rows > 2000 else 32, 1e-3 if fresh else 1e-4
        return schedule_for(rows, 60 if fresh else 10, size=size, least=100, lr=lr, evals=10, weight_decay=1e-4)


def pad_sets(sets: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """[B, most, d] filled with zeros, and [B, most] with 1 where an item is."""
    most = max(len(one) for one in sets)
    items = torch.zeros(len(sets), most, sets[0].shape[1])
    mask = torch.zeros(len(sets), most, dtype=torch.long)
    for i, one in enumerate(sets):
        items[i, : len(one)] = torch.as_tensor(one)
        mask[i, : len(one)] = 1
    return items, mask


def reads_tables(config: Settings) -> bool:
    return "n_numbers" in config.field_names()


def _labeled(rows: Rows, chosen: Mapping[str, str]) -> Rows:
    """Every column but the label's describes the row."""
    label = _label_column(rows, chosen)
    if label is None:
        raise DataError(
            f"{rows.path} has no label column (looked for label, {', '.join(LABELS)}); it has:"
            f' {", ".join(rows.columns)}. Name it: data.columns="label=NAME".'
        )
    made = [{"set": {name: value for name, value in row.items() if name != label}, "label": row[label]} for row in rows]
    return ListRows(made, rows.path)


def _label_column(rows: Rows, chosen: Mapping[str, str]) -> str | None:
    if "label" in chosen:
        rows.require_column(chosen["label"])
        return chosen["label"]
    lower = {name.lower(): name for name in rows.columns}
    return next((lower[name] for name in ("label", *LABELS) if name in lower), None)


def read_sets(path: Path) -> Rows:
    """An npz: x [n, items, numbers] with y; rows of uneven size as x [all items, numbers] with offsets [n + 1]."""
    held = read_arrays(path)
    items = next((held[name] for name in ("x", "points", "items", "sets", "data") if name in held), None)
    if items is None or items.ndim != (2 if "offsets" in held else 3):
        has = ", ".join(f"{name} {list(value.shape)}" for name, value in held.items())
        raise DataError(f"{path} has no sets: it needs x [n, items, numbers], or x and offsets; it has {has}.")
    if "offsets" in held:
        items = [items[a:b] for a, b in pairwise(ends_of(held["offsets"], len(items), path))]
    labels = labels_of(held, len(items), "sets", path)
    rows: list[Row] = [{"set": one} for one in items]
    if labels is not None:
        for row, one in zip(rows, labels, strict=True):
            row["label"] = one
    return ListRows(rows, str(path))


def _numbers(values: Sequence[Any]) -> Any:
    """A column as numbers, NaN where it is empty; None where it holds words."""
    read = np.array([_number(value) for value in values])
    known = [value for value in values if value not in ("", None)]
    if len(known) == 0 or np.isnan(read).sum() > len(values) - len(known):
        return None
    return read


def _number(value: Any) -> float:
    try:
        read = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return read if math.isfinite(read) else math.nan
