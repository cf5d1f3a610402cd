"""Tables (TSV, CSV, JSONL, JSON, Parquet) as input of `run`: one prediction for each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from anyformer.data.cache import cache_folder
from anyformer.data.files import data_suffix
from anyformer.data.rows import RenamedRows, Rows, read
from anyformer.data.settings import DataSettings, parse_pairs
from anyformer.data.tables.formats import SUFFIXES, json_rows, parse_json, text_of
from anyformer.data.unpack import content
from anyformer.errors import DataError, InputError
from anyformer.tasks.base import Task, column_names, spell_header
from anyformer.upgrades import upgrade_columns

TABLES = ("tsv", "csv", "jsonl", "parquet")


def is_table(kind: type[Task], path: Path) -> bool:
    """Whether the file holds rows: its name says so; a JSON file for a task on texts holds a list of objects or of
    texts."""
    form = SUFFIXES.get(data_suffix(path))
    if kind.reads == "files":
        return form is not None
    if form == "json":
        return json_rows(parse_json(text_of(content(path, cache_folder()), path), path)) is not None
    return form in TABLES


def find_rows(kind: type[Task], path: str, columns: str, folder: Mapping[str, Any]) -> Rows:
    """The rows of a table under the task's names. `columns` says which column is what. If it is empty, columns are
    those of training (`folder` holds the data settings of the model's folder) as far as the table has them, else found
    by their usual names."""
    if columns:
        return _questions(kind, path, DataSettings(columns=columns))
    header = folder.get("header")
    known: tuple[str, ...] = ()
    if learned := parse_pairs(upgrade_columns(folder.get("columns", "")), "data.columns"):
        with suppress(DataError):  # COCO's files have no columns
            known = read(path, header=header, names=column_names(kind.columns)).columns
    pairs = [f"{ours}={theirs}" for ours, theirs in learned.items() if theirs in known]
    return _questions(kind, path, DataSettings(columns=",".join(pairs), header=header))


def _questions(kind: type[Task], path: str, data: DataSettings) -> Rows:
    chosen = parse_pairs(data.columns, "--columns")
    if kind.reads == "files":  # the column of the files is found by `open`
        chosen.pop(kind.columns[0].name, None)
    return kind.questions(kind.open(path, data), chosen)


def describe(rows: Rows, path: str) -> str:
    """What was made of a table: how many rows, and which column is what."""
    count = f"{len(rows):,} row{'s' * (len(rows) != 1)}"
    header = "" if (found := spell_header(rows)) is None else f" Header: {found}."
    if not isinstance(rows, RenamedRows):
        return f"{path} is read as {count}.{header}"
    told = [
        f'the {ours} is the column "{theirs}"'
        if isinstance(theirs, str)
        else f"the {ours} are the columns {', '.join(theirs)}"
        for ours, theirs in rows.names.items()
        if not rows.has_files or ours != rows.columns[0]  # which holds opened files
    ]
    return f"{path} is read as {count}{': ' if told else ''}{', '.join(told)}.{header}"


def ask(kind: type[Task], rows: Rows) -> Iterator[Any]:
    """What a task is asked about each row; None for a row whose text is blank, which has a blank answer."""
    for i, row in enumerate(rows):
        values = list(row.values())
        if kind.reads == "files":
            file, *beside = [value for value in values if value not in (None, "")]
            yield (file, *beside) if beside else file
            continue
        for name, value in row.items():
            if not isinstance(value, (str, list, tuple, Mapping)):
                given = "nothing" if value is None else type(value).__name__
                raise InputError(f"{rows.location(i)}: the {name} is {given}; it must be a text.")
        if any(isinstance(value, str) and not value.strip() for value in values):
            if kind.name == "embed":
                raise InputError(f"{rows.location(i)}, is blank; remove it.")
            yield None
        elif len(values) == 1:
            yield tuple(values[0]) if isinstance(values[0], list) else values[0]
        else:
            yield tuple(values)
