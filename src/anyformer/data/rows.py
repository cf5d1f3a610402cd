"""Rows out of files: read("train.tsv.gz")[3] -> {"sentence": "…", "label": "1"}

Files stay where they are: a row is cut out of the mapped bytes when it is asked for.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, overload

import numpy as np

from anyformer.data.cache import cache_folder
from anyformer.data.files import Paths, data_suffix, expand, reading
from anyformer.data.tables.formats import READERS, SUFFIXES, Part, ReadOptions, Row
from anyformer.errors import ConfigError, DataError, InputError, nearest
from anyformer.upgrades import COLUMNS

T = TypeVar("T")


class Rows(Sequence[Row]):
    """Sized and indexable. `columns` are the names in every row; `fingerprint` changes if a file does."""

    columns: tuple[str, ...]
    fingerprint: str
    path: str  # the name of the source in messages
    kind: str = "table"  # or "text": consecutive lines
    has_files: bool = False  # whether values may be files (images, audio) with a `path`
    # Metadata of all rows: the class names; the cells of the first line if no header was detected.
    metadata: Mapping[str, Any] = MappingProxyType({})

    def row(self, i: int) -> Row:
        raise NotImplementedError

    def location(self, i: int) -> str:
        """ "file.tsv, line 12" """
        raise NotImplementedError

    @overload
    def __getitem__(self, i: int) -> Row: ...
    @overload
    def __getitem__(self, i: slice) -> Rows: ...
    def __getitem__(self, i: int | slice) -> Row | Rows:
        if isinstance(i, slice):
            return RowSubset(self, np.arange(*i.indices(len(self))))
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} rows")
        return self.row(i + len(self) if i < 0 else int(i))

    def __iter__(self) -> Iterator[Row]:
        return (self.row(i) for i in range(len(self)))

    def select(self, index: Iterable[int]) -> Rows:
        """A subset of the rows, in the given order."""
        return RowSubset(self, np.fromiter(index, dtype=np.int64))

    def merge_columns(self, name: str, columns: Sequence[str]) -> Rows:
        """Rows with several columns merged into one list."""
        others = {column: column for column in self.columns if column not in columns}
        return RenamedRows(self, {**others, name: tuple(columns)})

    def rename(self, columns: Mapping[str, str]) -> Rows:
        """Rows with new column names (keys) for old ones (values).  rename({"text": "sentence"})"""
        for name in columns.values():
            self.require_column(name)
        return RenamedRows(self, dict(columns))

    def require_column(self, column: str) -> None:
        if column not in self.columns:
            hint = nearest(column, self.columns)
            raise DataError(f'{self.path} has no column "{column}".{hint} It has: {", ".join(self.columns)}.')


class ConcatRows(Rows):
    """Rows of several sources, one source after another; all have the same columns, in any order."""

    def __init__(self, sources: Sequence[Part | Rows], digests: Iterable[str]) -> None:
        self.sources, self.columns = sources, sources[0].columns
        for source in sources[1:]:
            if set(source.columns) != set(self.columns):
                raise DataError(
                    f"{source.path} has the columns {', '.join(source.columns)}; {sources[0].path} has"
                    f" {', '.join(self.columns)}. Files that are read together must have the same columns."
                )
        self.ends = list(accumulate(len(source) for source in sources))
        self.fingerprint = _digest(digests)
        self.has_files = any(isinstance(source, Rows) and source.has_files for source in sources)
        self.path = str(sources[0].path) if len(sources) == 1 else f"{sources[0].path} and {len(sources) - 1} more"

    def __len__(self) -> int:
        return self.ends[-1]

    def _find(self, i: int) -> tuple[Part | Rows, int]:
        n = bisect_right(self.ends, i)
        return self.sources[n], i - (self.ends[n - 1] if n else 0)

    def row(self, i: int) -> Row:
        source, place = self._find(i)
        return source.row(place)

    def location(self, i: int) -> str:
        source, place = self._find(i)
        return source.location(place)


class FileRows(ConcatRows):
    """The records of one or several files."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__(parts, (part.digest for part in parts))
        self.kind = "text" if all(part.plain for part in parts) else "table"
        if parts[0].headerless:
            self.metadata = {"first_line": list(parts[0].row(0).values())}


class JoinedTables(ConcatRows):
    """Rows of several sources, each read in its own way."""

    def __init__(self, several: Sequence[Rows]) -> None:
        super().__init__(several, (rows.fingerprint for rows in several))
        self.several, self.metadata = several, several[0].metadata
        self.kind = "text" if all(rows.kind == "text" for rows in several) else "table"


class ParallelRows(Rows):
    """Lines of parallel files: line 7 of each file makes row 7."""

    def __init__(self, sides: Mapping[str, Rows]) -> None:
        self.sides = dict(sides)
        counts = {rows.path: len(rows) for rows in sides.values()}
        if len(set(counts.values())) > 1:
            counted = "; ".join(f"{path} has {count:,} lines" for path, count in counts.items())
            raise DataError(f"{counted}. Parallel files must have the same number of lines.")
        self.columns = tuple(self.sides)
        self.fingerprint = _digest(rows.fingerprint for rows in self.sides.values())
        self.path = " and ".join(counts)

    def __len__(self) -> int:
        return len(next(iter(self.sides.values())))

    def row(self, i: int) -> Row:
        return {name: rows.row(i)["text"] for name, rows in self.sides.items()}

    def location(self, i: int) -> str:
        return next(iter(self.sides.values())).location(i)


def map_rows(rows: Rows, make: Callable[[Row], T]) -> Iterator[T]:
    """Apply `make` to every row; errors name the file and line."""
    for i, row in enumerate(rows):
        try:
            made = make(row)
        except InputError as error:
            raise type(error)(f"{rows.location(i)}: {error}") from None
        yield made


class RowSubset(Rows):
    """A subset of rows, in its own order."""

    def __init__(self, rows: Rows, numbers: Any) -> None:
        self.rows, self.numbers = rows, numbers
        self.columns, self.path, self.kind, self.metadata = rows.columns, rows.path, rows.kind, rows.metadata
        self.has_files = rows.has_files
        self.fingerprint = _digest([rows.fingerprint, hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()])

    def __len__(self) -> int:
        return len(self.numbers)

    def row(self, i: int) -> Row:
        return self.rows.row(int(self.numbers[i]))

    def location(self, i: int) -> str:
        return self.rows.location(int(self.numbers[i]))


class RenamedRows(Rows):
    """Rows with renamed columns; several columns may be merged into one list."""

    def __init__(self, rows: Rows, names: Mapping[str, str | tuple[str, ...]]) -> None:
        self.rows, self.names = rows, names
        self.columns, self.path, self.kind, self.metadata = tuple(names), rows.path, rows.kind, rows.metadata
        self.has_files = rows.has_files
        self.fingerprint = _digest([rows.fingerprint, repr(sorted(_saved_names(names)))])

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, i: int) -> Row:
        row = self.rows.row(i)
        try:
            return {
                ours: row[theirs] if isinstance(theirs, str) else [row[one] for one in theirs]
                for ours, theirs in self.names.items()
            }
        except KeyError as error:
            has = ", ".join(row)
            raise DataError(f"{self.location(i)}, has no {error.args[0]!r}; it has: {has}.") from None

    def location(self, i: int) -> str:
        return self.rows.location(i)


def _saved_names(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The pairs of names that fingerprints are made of: columns that were renamed have the names of saved runs."""
    saved = {new: old for old, new in COLUMNS.items()}
    for ours, theirs in names.items():
        yield saved.get(ours, ours), saved[ours] if ours in saved and theirs == ours else theirs


class ListRows(Rows):
    """Rows in memory."""

    def __init__(self, rows: Sequence[Row], path: str = "the rows given") -> None:
        if not rows:
            raise DataError(f"{path} are empty.")
        self.listed, self.path = list(rows), path
        self.columns = tuple(rows[0])
        self.fingerprint = _digest(repr(row) for row in rows)

    def __len__(self) -> int:
        return len(self.listed)

    def row(self, i: int) -> Row:
        return self.listed[i]

    def location(self, i: int) -> str:
        return f"{self.path}, row {i + 1}"


def file_columns(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Column -> its names in the file; of the first source, if there are several."""
    if isinstance(rows, RowSubset):
        return file_columns(rows.rows)
    if isinstance(rows, RenamedRows):
        below = file_columns(rows.rows)
        given = {ours: (theirs,) if isinstance(theirs, str) else theirs for ours, theirs in rows.names.items()}
        return {
            ours: tuple(name for one in theirs for name in below.get(one, (one,))) for ours, theirs in given.items()
        }
    if isinstance(rows, JoinedTables):
        return file_columns(rows.several[0])
    return {name: (name,) for name in rows.columns}


def unused_columns(rows: Rows) -> list[str]:
    """Columns of the file that the rows do not use."""
    used = {name for names in file_columns(rows).values() for name in names}
    inner = rows
    while isinstance(inner, (RowSubset, RenamedRows, JoinedTables)):
        inner = inner.several[0] if isinstance(inner, JoinedTables) else inner.rows
    return [name for name in inner.columns if name not in used]


def _digest(parts: Iterable[str]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(part.encode() + b"\0")
    return whole.hexdigest()


def read(
    paths: Paths,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    header: bool | None = None,
    names: Iterable[str] = (),
    sides: Sequence[str] = (),
    default: str = "text",
    cache: Path | None = None,
) -> Rows:
    """Read rows from a file, several files or globs ("part-*.tsv"); .gz and .xz are decompressed.

    The format follows from the suffix (.txt, .tsv, .csv, .jsonl, .json, .parquet, .conll) unless `format` is given; for
    other suffixes it is `default`. `columns` renames: field -> column. `header`: whether a TSV or CSV begins with
    column names (default: detected automatically, with `names` as the names to expect). `sides` are the column names of
    parallel files: as many text files as sides are read in parallel.
    """
    groups = expand(paths)
    if header is None and any(not name.isdigit() for name in (columns or {}).values()):
        header = True  # column names in `columns` are those of a header
    asked = ReadOptions(cache or cache_folder(), header, frozenset(name.lower() for name in names))
    if sides and _all_text(groups, format, default):
        if len(groups) != len(sides):
            given = f"{len(groups)} file{'s' * (len(groups) != 1)}"
            raise DataError(
                f"Parallel text needs one file for each of {', '.join(sides)}; {given} given. Write"
                f' "{",".join(f"file.{side}" for side in sides)}" (the same file twice if both are one text), or give'
                " a TSV with a column for each."
            )
        texts = {side: _rows(group, "text", default, asked) for side, group in zip(sides, groups, strict=True)}
        rows: Rows = ParallelRows(texts)
    else:
        rows = _rows([path for group in groups for path in group], format, default, asked)
    return rows if columns is None else rows.rename(columns)


def side_by_side(paths: Paths, sides: Sequence[str], format: str | None, default: str) -> bool:
    """Whether the paths are plain text files, one for each side."""
    groups = expand(paths)
    return len(groups) == len(sides) and _all_text(groups, format, default)


def _all_text(groups: list[list[Path]], format: str | None, default: str) -> bool:
    return {_kind(path, format, default) for group in groups for path in group} == {"text"}


def _rows(paths: list[Path], format: str | None, default: str, asked: ReadOptions) -> Rows:
    return FileRows([_part(path, READERS[_kind(path, format, default)], asked) for path in paths])


def _part(path: Path, reader: Callable[[Path, ReadOptions], Part], asked: ReadOptions) -> Part:
    with reading(path):
        return reader(path, asked)


def _kind(path: Path, format: str | None, default: str) -> str:
    if format is not None and format not in READERS:
        raise ConfigError(f'There is no format "{format}".{nearest(format, READERS)} There are: {", ".join(READERS)}.')
    return format or SUFFIXES.get(data_suffix(path), default)
