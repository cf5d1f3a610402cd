"""Few-shot prompts (Brown et al. 2020): examples from a table in one template, then the new case.

shots = make_few_shot_prompt("capitals.tsv")    # France<TAB>Paris, one example per line
shots.prompt("Italy")                           # "Q: France\nA: Paris\n\nQ: Italy\nA:"
shots.stop                                      # "\n\n": the text between two examples ends an answer

The last column is the answer. A template names columns by index, {0}, or by the names in the table's first line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from string import Formatter

from anyformer.errors import InputError, nearest
from anyformer.tokenizers.components import read_lines

Table = str | PathLike[str] | Sequence[Sequence[str]]

# A first line of only these words is a header.
HEADINGS = frozenset(
    "question answer input output text label source target prompt completion response sentence class query reply"
    " context premise hypothesis instruction q a x y english german french en de fr".split()
)


@dataclass(frozen=True)
class FewShotPrompt:
    """Examples and a template; `pieces` holds the template's texts and column indices."""

    rows: tuple[tuple[str, ...], ...]
    pieces: tuple[str | int, ...]

    @property
    def columns(self) -> int:
        return len(self.rows[0])

    @property
    def stop(self) -> str:
        """The template's text after the answer; empty if it ends with the answer."""
        return "".join(str(piece) for piece in self.pieces[self.pieces.index(self.columns - 1) + 1 :])

    def prompt(self, case: str) -> str:
        """Return the examples and a new case up to its answer. The case separates several columns by tabs."""
        cells = tuple(case.split("\t")) if self.columns > 2 else (case,)
        if len(cells) != self.columns - 1:
            raise InputError(
                f"The examples have {self.columns} columns, the last one the answer, so a case needs {self.columns - 1}"
                f" separated by tabs; this one has {len(cells)}: {case[:60]!r}."
            )
        head = self.pieces[: self.pieces.index(self.columns - 1)]
        # A trailing space belongs to the answer's first word; here it would be a separate token.
        return "".join(_fill(self.pieces, row) for row in self.rows) + _fill(head, cells).rstrip(" ")


def _fill(pieces: tuple[str | int, ...], row: tuple[str, ...]) -> str:
    return "".join(piece if isinstance(piece, str) else row[piece] for piece in pieces)


def make_few_shot_prompt(source: Table, template: str | None = None) -> FewShotPrompt:
    """Make a prompt from rows or a file of tab-separated lines. The default template is Q: … A: … and an empty line."""
    rows = read_rows(Path(source)) if isinstance(source, (str, PathLike)) else _check_rows(source)
    fields = [] if template is None else [field for _, field, _, _ in _parse(template) if field is not None]
    named = any(not field.isdigit() for field in fields)
    headed = named or all(cell.strip().lower() in HEADINGS for cell in rows[0])
    names = rows[0] if headed else ()
    rows = rows[1:] if headed else rows
    if not rows:
        raise InputError("The table has a header but no examples; add at least one row.")
    count = len(rows[0])
    if template is None:
        questions = "\n".join(f"{{{i}}}" for i in range(count - 1))
        template = f"Q: {questions}\nA: {{{count - 1}}}\n\n"
    return FewShotPrompt(tuple(rows), _cut(template, names, count))


def read_rows(file: Path) -> list[tuple[str, ...]]:
    if not file.is_file():
        raise InputError(f"{file} does not exist; give a file of tab-separated examples.")
    rows: list[tuple[str, ...]] = []
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        row = tuple(line.removeprefix("\ufeff").split("\t"))
        if len(row) < 2:
            raise InputError(
                f"{file}, line {number}, has no tab; each line must hold a question and its answer, separated by a tab."
            )
        if rows and len(row) != len(rows[0]):
            raise InputError(
                f"{file}, line {number}, has {len(row)} columns, but the lines before have {len(rows[0])}."
            )
        rows.append(row)
    if not rows:
        raise InputError(f"{file} is empty; give at least one tab-separated example.")
    return rows


def _check_rows(source: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    rows = [tuple(row) for row in source if not isinstance(row, str)]
    alike = len(rows) == len(source) and bool(rows) and all(len(row) == len(rows[0]) > 1 for row in rows)
    if not alike or not all(isinstance(cell, str) for row in rows for cell in row):
        raise InputError('shots must be rows of texts, such as [("France", "Paris"), ("Italy", "Rome")], or a file.')
    return rows


def _parse(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"template is invalid: {error}; write {{{{ for a literal brace.") from None


def _cut(template: str, names: Sequence[str], count: int) -> tuple[str | int, ...]:
    """Return the template as texts and column indices."""
    pieces: list[str | int] = []
    for text, field, spec, conversion in _parse(template):
        pieces += [text] if text else []
        if field is not None:
            plain = not spec and not conversion
            place = int(field) if field.isdigit() else list(names).index(field) if field in names else count
            if not plain or place >= count:
                known = [*names, *map(str, range(count))]
                shown = ", ".join(f"{{{name}}}" for name in known)
                raise InputError(f'template has no column "{{{field}}}".{nearest(field, known)} Columns: {shown}.')
            pieces.append(place)
    columns = [piece for piece in pieces if isinstance(piece, int)]
    if columns.count(count - 1) != 1 or columns[-1] != count - 1 or len(columns) < 2:
        raise InputError(f"template must name the answer, {{{count - 1}}}, once, after the other columns.")
    return tuple(pieces)
