"""A table (TSV, CSV, JSONL, Parquet) as the INPUT of `run`: each row is a question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anyformer.data.files import data_suffix
from anyformer.data.rows import RenamedRows, Rows, read
from anyformer.data.settings import parse_pairs
from anyformer.data.tables.formats import SUFFIXES
from anyformer.errors import InputError
from anyformer.tasks.base import Task

TABLES = ("tsv", "csv", "jsonl", "parquet")


def is_table(path: Path) -> bool:
    """Whether the name says that the file holds rows."""
    return SUFFIXES.get(data_suffix(path)) in TABLES


def find_rows(kind: type[Task], path: str, columns: str, folder: Mapping[str, Any]) -> Rows:
    """The rows of a table under the task's names. `columns` says which column is what. If it is empty, columns are
    those of training (`folder` holds the data settings of the model's folder) as far as the table has them, else found
    by their usual names."""
    names = [name for column in kind.columns for name in (column.name, *column.also)]
    named = any(not name.isdigit() for name in parse_pairs(columns, "--columns").values())
    header = True if named else None if columns else folder.get("header")
    rows = read(path, header=header, names=names)
    if columns:
        return kind.questions(rows, parse_pairs(columns, "--columns"))
    learned = parse_pairs(folder.get("columns", ""), "data.columns")
    return kind.questions(rows, {ours: theirs for ours, theirs in learned.items() if theirs in rows.columns})


def describe(rows: Rows, path: str) -> str:
    """What was made of a table: how many rows, and which column is what."""
    count = f"{len(rows):,} row{'s' * (len(rows) != 1)}"
    if not isinstance(rows, RenamedRows):
        return f"{path} is read as {count}."
    told = [
        f'the {ours} is the column "{theirs}"'
        if isinstance(theirs, str)
        else f"the {ours} are the columns {', '.join(theirs)}"
        for ours, theirs in rows.names.items()
    ]
    return f"{path} is read as {count}: {', '.join(told)}."


def ask(kind: type[Task], rows: Rows) -> Iterator[Any]:
    """What a task is asked about each row; None for a row whose text is blank, which has a blank answer."""
    for i, row in enumerate(rows):
        values = list(row.values())
        for name, value in row.items():
            if not isinstance(value, (str, list, tuple, Mapping)):
                given = "nothing" if value is None else type(value).__name__
                raise InputError(f"{rows.location(i)}: the {name} is {given}, and must be a text.")
        if any(isinstance(value, str) and not value.strip() for value in values):
            if kind.name == "embed":
                raise InputError(f"{rows.location(i)}, is blank, so it has no vector: leave it out.")
            yield None
        elif len(values) == 1:
            yield tuple(values[0]) if isinstance(values[0], list) else values[0]
        else:
            yield tuple(values)
