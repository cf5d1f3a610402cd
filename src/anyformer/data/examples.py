"""Rows prepared once: numbers in flat arrays on disk, mapped, and found again at the next start.

An example is a dict of lists of numbers (the ids of a text) and single numbers (a label).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.data.files import writing
from anyformer.data.formats import Row
from anyformer.data.read import Rows
from anyformer.errors import Error

Example = Mapping[str, Any]
Prepare = Callable[[list[Row]], Sequence[Example]]
Progress = Callable[[int, int], None]  # rows done, rows in all

CHUNK = 1024  # rows prepared at once
VERSION = 1  # of the layout on disk


class Field:
    """One field of all examples: `flat`, and where each example's numbers begin, where they are lists."""

    def __init__(self, flat: NDArray[Any], offsets: NDArray[np.int64] | None) -> None:
        self.flat, self.offsets = flat, offsets

    def __getitem__(self, i: int) -> Any:
        if self.offsets is None:
            return self.flat[i]
        return self.flat[self.offsets[i] : self.offsets[i + 1]]


class Examples(Sequence[dict[str, Any]]):
    """`examples[i]` has numpy arrays and numbers; `examples.row(i)` is the row that it was made of."""

    def __init__(self, fields: Mapping[str, Field], rows: NDArray[np.int64]) -> None:
        self.fields, self.rows = dict(fields), rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return {name: field[i] for name, field in self.fields.items()}

    def row(self, i: int) -> int:
        return int(self.rows[i])

    def sizes(self, name: str) -> NDArray[np.int64]:
        """How many numbers each example has in a field."""
        offsets = self.fields[name].offsets
        return np.ones(len(self), dtype=np.int64) if offsets is None else np.diff(offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Of its longest list, for each example."""
        return np.max([self.sizes(name) for name in self.fields], axis=0)


def prepare(
    rows: Rows, function: Prepare, *, cache: Path | None = None, key: str = "", progress: Progress | None = None
) -> Examples:
    """Every row through `function`, which takes a list of rows and gives their examples: one a row, or any number of
    them that say their row's place in that list as "row".

    With a `cache` folder they are kept there; other files, or another `key` (the tokenizer, the settings), make them
    anew. What is wrong with a row is said with its file and line.
    """
    if cache is None:
        return _make(rows, function, progress)
    name = hashlib.blake2b(f"{VERSION}|{rows.fingerprint}|{key}".encode(), digest_size=16).hexdigest()
    place = cache / f"{name}.examples"
    if not (place / "fields.json").exists():
        _store(_make(rows, function, progress), place)
    return _open(place)


def _make(rows: Rows, function: Prepare, progress: Progress | None) -> Examples:
    gathered = _Gathered()
    for start in range(0, len(rows), CHUNK):
        chunk = [rows.row(i) for i in range(start, min(start + CHUNK, len(rows)))]
        made = _careful(rows, function, chunk, start)
        gathered.add(made, start)
        if progress is not None:
            progress(start + len(chunk), len(rows))
    return gathered.examples()


def _careful(rows: Rows, function: Prepare, chunk: list[Row], start: int) -> Sequence[Example]:
    try:
        return function(chunk)
    except Error as error:
        for i, row in enumerate(chunk):  # again one by one: which of them was it?
            try:
                function([row])
            except Error as one:
                raise type(one)(f"{rows.where(start + i)}: {one}") from None
        raise error


class _Gathered:
    """Chunks of examples as arrays, so that Python's numbers never pile up."""

    def __init__(self) -> None:
        self.flat: dict[str, list[NDArray[Any]]] = {}
        self.sizes: dict[str, list[NDArray[np.int64]]] = {}
        self.rows: list[NDArray[np.int64]] = []

    def add(self, made: Sequence[Example], start: int) -> None:
        if not made:
            return
        self.rows.append(np.array([example.get("row", i) for i, example in enumerate(made)], dtype=np.int64) + start)
        for name, value in made[0].items():
            if name == "row":
                continue
            values = [example[name] for example in made]
            if isinstance(value, (list, tuple, np.ndarray)):
                sizes = np.array([len(one) for one in values], dtype=np.int64)
                self.sizes.setdefault(name, []).append(sizes)
                self.flat.setdefault(name, []).append(_flatten(values, int(sizes.sum())))
            else:
                self.flat.setdefault(name, []).append(np.array(values, dtype=_kind(values)))

    def examples(self) -> Examples:
        fields = {}
        for name, pieces in self.flat.items():
            offsets = None
            if name in self.sizes:
                offsets = np.concatenate([[0], np.cumsum(np.concatenate(self.sizes[name]))])
            fields[name] = Field(np.concatenate(pieces), offsets)
        return Examples(fields, np.concatenate(self.rows) if self.rows else np.empty(0, dtype=np.int64))


def _flatten(values: list[Any], count: int) -> NDArray[Any]:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    first = next(chain.from_iterable(values), 0)
    kind = np.float32 if isinstance(first, float) else np.int32
    return np.fromiter(chain.from_iterable(values), dtype=kind, count=count)


def _kind(values: Iterable[Any]) -> Any:
    return np.float32 if any(isinstance(value, float) for value in values) else np.int64


def _store(examples: Examples, place: Path) -> None:
    """Into a folder beside, which takes the name when it is whole."""
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".examples.", dir=place.parent))
        try:
            np.save(draft / "rows.npy", examples.rows)
            for i, field in enumerate(examples.fields.values()):
                np.save(draft / f"{i}.npy", field.flat)
                if field.offsets is not None:
                    np.save(draft / f"{i}.offsets.npy", field.offsets)
            (draft / "fields.json").write_text(json.dumps(list(examples.fields)))
            if not place.exists():
                os.replace(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _open(place: Path) -> Examples:
    fields = {}
    for i, name in enumerate(json.loads((place / "fields.json").read_text())):
        offsets = place / f"{i}.offsets.npy"
        mapped = np.load(offsets, mmap_mode="r") if offsets.exists() else None
        fields[name] = Field(np.load(place / f"{i}.npy", mmap_mode="r"), mapped)
    return Examples(fields, np.load(place / "rows.npy", mmap_mode="r"))
