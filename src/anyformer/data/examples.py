"""Rows prepared once: numbers in flat arrays on disk, memory-mapped and reused at the next start.

An example is a dict of lists of numbers (token ids) and single numbers (a label).
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

from anyformer.data.cache import used, writing
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import Error
from anyformer.tokenizers.cuts import count_rows

Example = Mapping[str, Any]
Prepare = Callable[[list[Row]], Sequence[Example]]
Progress = Callable[[int, int], None]  # rows done, rows in total

CHUNK = 1024  # rows prepared at once
VERSION = 1  # of the file layout


class ArrayField:
    """One field of all examples: `flat`, and the start of each example if the field holds lists."""

    def __init__(self, flat: NDArray[Any], offsets: NDArray[np.int64] | None) -> None:
        self.flat, self.offsets = flat, offsets

    def __getitem__(self, i: int) -> Any:
        if self.offsets is None:
            return self.flat[i]
        return self.flat[self.offsets[i] : self.offsets[i + 1]]


class Examples(Sequence[dict[str, Any]]):
    """`examples[i]` has numpy arrays and numbers; `examples.row(i)` is the index of the row it was made from."""

    def __init__(self, fields: Mapping[str, ArrayField], rows: NDArray[np.int64]) -> None:
        self.fields, self.rows = dict(fields), rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return {name: field[i] for name, field in self.fields.items()}

    def row(self, i: int) -> int:
        return int(self.rows[i])

    def sizes(self, name: str) -> NDArray[np.int64]:
        """The number of values that each example has in a field."""
        if not len(self):  # without examples (only blank lines, say) the fields are unknown
            return np.zeros(0, dtype=np.int64)
        offsets = self.fields[name].offsets
        return np.ones(len(self), dtype=np.int64) if offsets is None else np.diff(offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of the longest list of each example."""
        return np.max([self.sizes(name) for name in self.fields], axis=0)


class LazyExamples(Examples):
    """Examples that are prepared on every access, such as images, which are not kept decoded."""

    def __init__(self, rows: Rows, function: Callable[[Row], Example]) -> None:
        super().__init__({}, np.arange(len(rows)))
        self.source, self.function = rows, function

    def __getitem__(self, i: Any) -> Any:
        try:
            return self.function(self.source[int(i)])
        except Error as error:
            raise type(error)(f"{self.source.location(int(i))}: {error}") from None

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.ones(len(self), dtype=np.int64)


def prepare(
    rows: Rows, function: Prepare, *, cache: Path | None = None, key: str = "", progress: Progress | None = None
) -> Examples:
    """Apply `function` to every row. It takes a list of rows and returns their examples: one for each row, or any
    number whose "row" is the position of their row in the list.

    With a `cache` folder the examples are kept there; changed files or another `key` (the tokenizer, the settings)
    prepare them again. Errors name the file and line of the row.
    """
    if cache is None:
        return _make(rows, function, progress, _InMemory())
    name = hashlib.blake2b(f"{VERSION}|{rows.fingerprint}|{key}".encode(), digest_size=16).hexdigest()
    place = cache / f"{name}.examples"
    if not used(place):
        _store(rows, function, progress, place)
    return _open(place)


def _make(rows: Rows, function: Prepare, progress: Progress | None, store: _InMemory) -> Examples:
    gathered = _Gathered(store)
    for start in range(0, len(rows), CHUNK):
        chunk = [rows.row(i) for i in range(start, min(start + CHUNK, len(rows)))]
        gathered.add(_careful(rows, function, chunk, start), start)
        if progress is not None:
            progress(start + len(chunk), len(rows))
    return gathered.examples()


def _careful(rows: Rows, function: Prepare, chunk: list[Row], start: int) -> Sequence[Example]:
    try:
        return count_rows(function, chunk, range(start, start + len(chunk)))
    except Error as error:
        for i, row in enumerate(chunk):  # again one by one, to find the row with the error
            try:
                function([row])
            except Error as one:
                raise type(one)(f"{rows.location(start + i)}: {one}") from None
        raise error


class _InMemory:
    """Growing arrays by name."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[NDArray[Any]]] = {}

    def append(self, name: str, piece: NDArray[Any]) -> None:
        self.pieces.setdefault(name, []).append(piece)

    def whole(self, name: str) -> NDArray[Any]:
        return np.concatenate(self.pieces[name])


class _OnDisk(_InMemory):
    """Growing arrays in files, so that examples need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.kinds: dict[str, Any] = {}

    def append(self, name: str, piece: NDArray[Any]) -> None:
        kind = self.kinds.setdefault(name, piece.dtype)
        with (self.folder / f"{name}.bin").open("ab") as stream:
            piece.astype(kind, copy=False).tofile(stream)

    def whole(self, name: str) -> NDArray[Any]:
        path = self.folder / f"{name}.bin"
        kind = self.kinds[name]
        return np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.empty(0, dtype=kind)


class _Gathered:
    """Collects examples in chunks of arrays, so that few Python objects are alive at a time."""

    def __init__(self, store: _InMemory) -> None:
        self.store = store
        self.names: list[str] = []
        self.sizes: dict[str, list[NDArray[np.int64]]] = {}
        store.append("rows", np.empty(0, dtype=np.int64))

    def add(self, made: Sequence[Example], start: int) -> None:
        if not made:
            return
        self.store.append("rows", np.array([one.get("row", i) for i, one in enumerate(made)], dtype=np.int64) + start)
        self.names = self.names or [name for name in made[0] if name != "row"]
        for i, name in enumerate(self.names):
            values = [example[name] for example in made]
            if isinstance(values[0], (list, tuple, np.ndarray)):
                sizes = np.array([len(one) for one in values], dtype=np.int64)
                self.sizes.setdefault(name, []).append(sizes)
                self.store.append(str(i), _flatten(values, int(sizes.sum())))
            else:
                self.store.append(str(i), np.array(values, dtype=_kind(values)))

    def examples(self) -> Examples:
        fields = {}
        for i, name in enumerate(self.names):
            offsets = None
            if name in self.sizes:
                offsets = np.concatenate([[0], np.cumsum(np.concatenate(self.sizes[name]))])
            fields[name] = ArrayField(self.store.whole(str(i)), offsets)
        return Examples(fields, self.store.whole("rows"))


def _flatten(values: list[Any], count: int) -> NDArray[Any]:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    first = next(chain.from_iterable(values), 0)
    kind = np.float32 if isinstance(first, float) else np.int32
    return np.fromiter(chain.from_iterable(values), dtype=kind, count=count)


def _kind(values: Iterable[Any]) -> Any:
    return np.float32 if any(isinstance(value, float) for value in values) else np.int64


def _store(rows: Rows, function: Prepare, progress: Progress | None, place: Path) -> None:
    """Write to a temporary folder, which is renamed when it is complete."""
    with writing(place):
        draft = Path(tempfile.mkdtemp(prefix=".examples.", dir=place.parent))
        try:
            store = _OnDisk(draft)
            examples = _make(rows, function, progress, store)
            for i, field in enumerate(examples.fields.values()):
                if field.offsets is not None:
                    np.save(draft / f"{i}.offsets.npy", field.offsets)
            kinds = {name: str(kind) for name, kind in store.kinds.items()}
            (draft / "fields.json").write_text(json.dumps({"fields": list(examples.fields), "kinds": kinds}))
            if not place.exists():
                os.replace(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _open(place: Path) -> Examples:
    saved = json.loads((place / "fields.json").read_text())
    store = _OnDisk(place)
    store.kinds = saved["kinds"]
    fields = {}
    for i, name in enumerate(saved["fields"]):
        offsets = place / f"{i}.offsets.npy"
        fields[name] = ArrayField(store.whole(str(i)), np.load(offsets, mmap_mode="r") if offsets.exists() else None)
    return Examples(fields, store.whole("rows"))
