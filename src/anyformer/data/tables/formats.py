"""The formats of tables: each reader returns a file's records and a function from a record to a row.

Files without lines (Parquet, JSON that is one object) are converted to JSON lines, in pieces.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.cache import spool
from anyformer.data.files import BLOCK, Buffer, file_fingerprint
from anyformer.data.tables import line_index
from anyformer.data.tables.line_index import Spans
from anyformer.data.unpack import check_unpacked, content
from anyformer.errors import DataError

Row = dict[str, Any]
PARQUET_ROWS = 256  # rows read at a time; a page of one repeated value decompresses to as many copies

SUFFIXES = {
    ".txt": "text",
    ".text": "text",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".conll": "conll",
    ".conllu": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
}


@dataclass(frozen=True)
class ReadOptions:
    """What is known about a file. `names` are column names that indicate a header; `header` is None to detect it."""

    cache: Path
    header: bool | None = None
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Part:
    """One file as records; `parse` converts a record to a row."""

    path: Path
    data: Buffer
    spans: Spans
    columns: tuple[str, ...]
    parse: Callable[[str], Row]
    digest: str
    unit: str = "line"
    plain: bool = False  # consecutive lines of running text
    headerless: bool = False  # whether no header was detected, so that the first line is a row

    def __len__(self) -> int:
        return self.spans.shape[1]

    def text(self, i: int) -> str:
        return self.data[int(self.spans[0, i]) : int(self.spans[1, i])].decode("utf-8")

    def row(self, i: int) -> Row:
        try:
            return self.parse(self.text(i))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DataError(f"{self.location(i)}, is not a valid row: {error}.") from None

    def location(self, i: int) -> str:
        number = line_index.line_number(self.data, int(self.spans[0, i])) if self.unit == "line" else i + 1
        return f"{self.path}, {self.unit} {number}"


def read_text(path: Path, asked: ReadOptions) -> Part:
    data = content(path, asked.cache)
    spans, digest = line_index.lines(data, path, asked.cache)
    return Part(path, data, spans, ("text",), lambda line: {"text": line}, digest, plain=True)


def read_tsv(path: Path, asked: ReadOptions) -> Part:
    """Tab-separated cells; quotation marks have no special meaning."""
    data = content(path, asked.cache)
    spans, digest = line_index.lines(data, path, asked.cache)
    spans = line_index.not_blank(spans)
    counts = line_index.count_bytes(data, spans, line_index.TAB) + 1
    _check_counts(counts, lambda i: f"{path}, line {line_index.line_number(data, int(spans[0, i]))},", asked, path)
    columns, first = _header([line.split("\t") for line in _some(data, spans)], asked, path)
    parse = _cells(columns, lambda line: line.split("\t"))
    return Part(path, data, spans[:, first:], columns, parse, digest, headerless=asked.header is None and not first)


def read_csv(path: Path, asked: ReadOptions) -> Part:
    """Cells separated by commas (or semicolons), quoted if they contain one, as spreadsheets write them."""
    data = content(path, asked.cache)
    lines, digest = line_index.lines(data, path, asked.cache)
    comma = _comma(data, line_index.not_blank(lines), path)
    spans = line_index.not_blank(line_index.quoted(data, lines, comma, path))
    csv.field_size_limit(2**31 - 1)  # no limit on the length of a cell

    def where(i: int) -> str:
        return f"{path}, line {line_index.line_number(data, int(spans[0, i]))},"

    def cut(record: str) -> list[str]:
        try:
            (cells,) = csv.reader([record], delimiter=comma)
        except csv.Error:
            raise ValueError("it holds a carriage return (\\r) outside quotation marks") from None
        return cells

    def width(i: int, record: str) -> int:
        try:
            return len(cut(record))
        except ValueError as error:
            raise DataError(
                f"{where(i)} cannot be read: {error}; save the file with \\n or \\r\\n line endings."
            ) from None

    counts = np.array([width(i, record) for i, record in enumerate(line_index.texts(data, spans))])
    _check_counts(counts, where, asked, path)
    sample, detected = [cut(record) for record in _some(data, spans)], asked.header is None
    if detected and not any(_is_number(cell) for cell in sample[0]):
        known = looks_like_header(sample[0], sample[1:], asked.names)
        asked = replace(asked, header=known or not _is_row(sample[0], sample[1:]))  # spreadsheets write a header
    columns, first = _header(sample, asked, path)
    headerless = detected and not first
    return Part(path, data, spans[:, first:], columns, _cells(columns, cut), digest, headerless=headerless)


def _comma(data: Buffer, lines: Spans, path: Path) -> str:
    """The separator of the first row: the candidate that gives the most cells."""

    def cells(comma: str) -> int:
        try:
            first = line_index.quoted(data, lines[:, :200], comma, path)[:, :1]
            return len(next(csv.reader(line_index.texts(data, first), delimiter=comma), []))
        except (DataError, csv.Error):  # a quoted cell would not end with this separator
            return 0

    return max(",;\t", key=cells) if lines.size else ","


def _some(data: Buffer, spans: Spans) -> list[str]:
    return list(line_index.texts(data, spans[:, :200]))


def _check_counts(counts: Any, where: Callable[[int], str], asked: ReadOptions, path: Path) -> None:
    if not len(counts):
        raise DataError(f"{path} is empty.")
    wrong = np.flatnonzero(counts != counts[0])
    if len(wrong):
        i, has, expected = int(wrong[0]), int(counts[wrong[0]]), int(counts[0])
        more = f" ({len(wrong):,} such rows)" if len(wrong) > 1 else ""
        raise DataError(f"{where(i)} has {has} column{'s' * (has != 1)}; the first line has {expected}{more}.")


def _header(sample: list[list[str]], asked: ReadOptions, path: Path) -> tuple[tuple[str, ...], int]:
    """The column names and the number of rows they take; "1", "2" … without a header."""
    cells = [cell.strip() for cell in sample[0]]
    named = looks_like_header(cells, sample[1:], asked.names) if asked.header is None else asked.header
    if not named:
        return tuple(str(i + 1) for i in range(len(cells))), 0
    if len(sample) < 2:
        raise DataError(f"{path} has a header and no rows.")
    twice = [name for name in cells if cells.count(name) > 1]
    if twice:
        raise DataError(f'{path} has two columns named "{twice[0]}".')
    return tuple(cells), 1


def looks_like_header(cells: list[str], rows: list[list[str]], names: frozenset[str]) -> bool:
    """Whether a first line is a header: it has a name that the task knows (two, if they are as short as "to" and "en",
    which are also words), or every cell is a single word and some column continues with another type: numbers, or few
    distinct values without that word.
    """
    known = [cell for cell in cells if cell.lower() in names]
    if len(known) > 1 or any(len(name) > 3 for name in known):
        return True
    if not rows or not all(re.fullmatch(r"[A-Za-z_#][\w#.-]*", cell) for cell in cells):
        return False
    for i, cell in enumerate(cells):
        values = [row[i] for row in rows]
        few = len(values) >= 20 and len(set(values)) <= len(values) // 4
        if all(_is_number(value) for value in values) or (few and cell not in values):
            return True
    return False


def _is_row(cells: list[str], rows: list[list[str]]) -> bool:
    """Whether a first line is a row: one of its cells occurs again in a column with few distinct values, as a label
    does."""
    columns = [[row[i] for row in rows] for i in range(len(cells))]
    pairs = zip(cells, columns, strict=True)
    return any(cell in values and len(set(values)) <= len(values) / 2 for cell, values in pairs)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cells(columns: tuple[str, ...], cut: Callable[[str], list[str]]) -> Callable[[str], Row]:
    return lambda record: dict(zip(columns, cut(record), strict=True))


def read_jsonl(path: Path, asked: ReadOptions) -> Part:
    data = content(path, asked.cache)
    return _json_lines(path, data, asked, "line")


def _json_lines(path: Path, data: Buffer, asked: ReadOptions, unit: str) -> Part:
    spans, digest = line_index.lines(data, path, asked.cache)
    spans = line_index.not_blank(spans)
    part = Part(path, data, spans, (), _object, digest, unit)
    if not len(part):
        raise DataError(f"{path} is empty.")
    return Part(path, data, spans, tuple(part.row(0)), _object, digest, unit)


def _object(line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError("each line must be a JSON object")
    return row


def read_json(path: Path, asked: ReadOptions) -> Part:
    """A SQuAD file, a list of objects or strings, or an object with such a list under "data"."""
    listed = json_rows(parse_json(text_of(content(path, asked.cache), path), path))
    if listed is None:
        raise DataError(f'{path} must hold a list of objects or strings, or an object with such a list under "data".')
    squad = bool(listed) and "paragraphs" in listed[0]
    rows = _questions(listed, path) if squad else iter(listed)
    return _written(path, rows, asked, "question" if squad else "object")


def json_rows(whole: Any) -> list[Row] | None:
    """The rows of a JSON file, strings under the name "text"; None if it has no list of objects or strings."""
    listed = whole.get("data") if isinstance(whole, dict) else whole
    if not isinstance(listed, list):
        return None
    if listed and all(isinstance(item, str) for item in listed):
        return [{"text": item} for item in listed]
    return listed if all(isinstance(item, dict) for item in listed) else None


def text_of(data: Buffer, path: Path) -> str:
    """The content of a file as text."""
    if not len(data):
        raise DataError(f"{path} is empty.")
    line_index.check_text(data[:BLOCK], 0, path)  # refuses binary files before all of them is read
    try:
        return data[:].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise line_index.not_text(data, path) from None


def parse_json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}, is not JSON: {error.msg} at column {error.colno}.") from None
    except ValueError:  # Python's limit on digits
        raise DataError(f"{path} has an integer with thousands of digits.") from None
    except RecursionError:
        raise DataError(f"{path} has JSON that is nested too deeply.") from None


def _questions(articles: list[Row], path: Path) -> Iterator[Row]:
    """One row for each question, with the columns of SQuAD in Hugging Face datasets."""
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield {
                        "id": asked["id"],
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": asked["question"],
                        "answers": asked.get("answers", []),
                    }
    except KeyError as error:
        raise DataError(f"{path} is not a SQuAD file: {error} is missing.") from None
    except TypeError as error:
        raise DataError(f"{path} is not a SQuAD file: {error}.") from None


def _written(path: Path, rows: Iterable[Row], asked: ReadOptions, unit: str) -> Part:
    """Write rows as JSON lines."""
    data = spool(_json_blocks(rows, path), asked.cache / f"{file_fingerprint(path)}.jsonl")
    return _json_lines(path, data, asked, unit)


def _json_blocks(rows: Iterable[Row], path: Path) -> Iterator[bytes]:
    buffer, done, packed = bytearray(), 0, path.stat().st_size
    for row in rows:
        buffer += json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n"
        if len(buffer) > BLOCK:
            done += len(buffer)
            check_unpacked(str(path), packed, done)
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def read_parquet(path: Path, asked: ReadOptions) -> Part:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(f"{path} is a Parquet file, which needs pyarrow: pip install 'anyformer[data]'.") from None
    data = content(path, asked.cache)
    try:
        file = parquet.ParquetFile(arrow.BufferReader(arrow.py_buffer(data)))
    except arrow.ArrowInvalid as error:
        raise DataError(f"{path} is not a Parquet file: {str(error).rstrip('.')}.") from None
    if not file.metadata.num_rows:
        raise DataError(f"{path} is empty.")
    rows = (row for batch in file.iter_batches(batch_size=PARQUET_ROWS) for row in batch.to_pylist())
    return _written(path, rows, asked, "row")


def read_conll(path: Path, asked: ReadOptions) -> Part:
    """A token in each line, its labels in the following columns, a blank line between sentences. The first column is
    named "tokens", the last "tags", the others by number.
    """
    data = content(path, asked.cache)
    every, digest = line_index.lines(data, path, asked.cache)
    spans = line_index.paragraphs(data, every)
    width, kept = 0, []
    for i, record in enumerate(line_index.texts(data, spans)):
        cells = list(token_lines(record))
        kept.append(bool(cells))
        width = width or (len(cells[0]) if cells else 0)
        wrong = next((row for row in cells if len(row) != width), None)
        if wrong is not None:
            at = next(n for n, line in enumerate(record.split("\n")) if _columns(line) == wrong)
            line = line_index.line_number(data, int(spans[0, i])) + at
            has = f"{len(wrong)} column{'s' * (len(wrong) != 1)}"
            raise DataError(f"{path}, line {line}, has {has}; the first token has {width}.")
    if width < 2:
        raise DataError(f"{path} has {width} column; CoNLL files need a token and a tag in each line.")
    columns = ("tokens", *(str(i + 1) for i in range(1, width - 1)), "tags")

    def parse(record: str) -> Row:
        return {name: list(cells) for name, cells in zip(columns, zip(*token_lines(record), strict=True), strict=True)}

    return Part(path, data, spans[:, np.array(kept, dtype=bool)], columns, parse, digest)


def _columns(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def token_lines(record: str) -> Iterator[list[str]]:
    """Lines without document markers and CoNLL-U comments."""
    for line in record.split("\n"):
        line = line.rstrip("\r")
        if line.strip() and not line.startswith("-DOCSTART-") and not re.match(r"# \w+.*=", line):
            yield _columns(line)


READERS: dict[str, Callable[[Path, ReadOptions], Part]] = {
    "text": read_text,
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "json": read_json,
    "parquet": read_parquet,
    "conll": read_conll,
}
