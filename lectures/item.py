"""What an item is: an id, a function that shows it and asserts it, and what is known of it."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal, get_args

Kind = Literal["system", "mechanism", "formula", "figure", "table", "claim", "example", "reference"]
Cost = Literal["fast", "slow", "training", "gpu"]
Status = Literal["works", "partly", "missing", "unavailable"]
Holds = Literal["yes", "partly", "no"]
DECKS = {
    "000": "Transformers, from text to images to anything",
    "001": "Transformers (CS-433)",
    "002": "Transformers: encoder, decoder, BERT, MAE, DETR, ViT",
    "003": "Lecture 7: attention and Transformers",
    "004": "Theory: Transformers",
}
ID = re.compile(r"\d{3}-[\w.]+-\w+")


@dataclass(frozen=True)
class Table:
    """A table to look at; cells are shown as `str` or, for floats, with four significant digits."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""

    def cells(self) -> list[list[str]]:
        return [[_cell(cell) for cell in row] for row in self.rows]

    def __str__(self) -> str:
        cells = [list(self.head), *self.cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([*([self.title] if self.title else []), lines[0], "-" * len(lines[0]), *lines[1:]])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_cell, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).splitlines())


@dataclass(frozen=True)
class Item:
    """One item of a deck. `show` returns a text, a `Table`, a matplotlib figure, or a list of these."""

    id: str
    title: str  # the first line of the docstring
    about: str  # the rest of it
    kind: Kind
    cost: Cost = "fast"
    also: tuple[str, ...] = ()  # items of other decks (or of this one) that say the same
    status: Status = "works"
    note: str = ""  # what is missing, or why data cannot be had
    holds: Holds = "yes"  # whether a claim of the slides holds, by what was measured
    documented: str = ""  # the command that made all its numbers, which are read from docs/ and not made again
    beside: str = ""  # the command that made the numbers from docs/ beside those that the item makes itself
    wrong: Mapping[str, Any] = field(default_factory=dict)  # arguments that must break the assertions
    show: Callable[..., Any] | None = None
    code: str = ""  # of `show`, as it was when it was loaded: a file may change while its items run
    module: str = ""  # where it is written

    @property
    def deck(self) -> str:
        return self.id[:3]

    @property
    def helpers(self) -> str:
        """The code of what `show` uses of its own file, and what that uses, in the order of the file."""
        if self.show is None:
            return ""
        parts = _parts(self.module)
        wanted, found = _names(self.show.__code__), {self.show.__name__}
        while wanted := {name for name in wanted if name in parts} - found:
            found |= wanted
            wanted = {name for part in wanted for name in parts[part].uses}
        own = [parts[name].code for name in parts if name in found - {self.show.__name__}]
        called = set(re.findall(r"\binside\.(\w+)", "\n".join([self.code, *own])))
        shared = _parts(f"{__package__}.inside")
        return "\n\n\n".join([*own, *(f"# inside.py\n{shared[name].code}" for name in shared if name in called)])

    def name_in(self, place: str) -> str:
        """Its id in a deck or a section, whose slides may say the same under an id of their own; empty if none do."""
        return next((name for name in (self.id, *self.also) if f"{name}-".startswith(f"{place}-")), "")


def in_order(name: str) -> list[tuple[bool, int, str]]:
    """Sorts ids as the slides go: 000-2.9 is before 000-2.10."""
    parts = re.findall(r"\d+|[A-Za-z]+", name)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


ITEMS: dict[str, Item] = {}  # in page order
SECTIONS: dict[str, str] = {}  # "003-5" -> its title


def section(id: str, title: str) -> None:
    """Give a section of a deck a title."""
    SECTIONS[id] = title


def item(
    id: str,
    *,
    kind: Kind,
    cost: Cost = "fast",
    also: Sequence[str] = (),
    partly: str = "",
    holds: Holds = "yes",
    documented: str = "",
    beside: str = "",
    wrong: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function as an item. `partly` says what is missing of it; the other arguments are those of `Item`."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        title, _, about = (function.__doc__ or "").strip().partition("\n")
        status: Status = "partly" if partly else "works"
        texts = title, _unindent(about)
        code, module = _source(function), function.__module__
        given = (tuple(also), status, partly, holds, documented, beside, wrong or {}, function, code, module)
        _text(module)  # read now
        _enter(Item(id, *texts, kind, cost, *given))
        return function

    return enter


def missing(id: str, title: str, *, kind: Kind, needs: str, also: Sequence[str] = (), cost: Cost = "training") -> None:
    """Enter an item that is not built yet, with one line on what it needs."""
    _enter(Item(id, title, "", kind, cost, tuple(also), "missing", needs))


def unavailable(id: str, title: str, *, kind: Kind, why: str, also: Sequence[str] = (), cost: Cost = "gpu") -> None:
    """Enter an item whose data cannot be had, with the reason."""
    _enter(Item(id, title, "", kind, cost, tuple(also), "unavailable", why))


def _enter(one: Item) -> None:
    known = {name for other in ITEMS.values() for name in (other.id, *other.also)}
    twice = [name for name in (one.id, *one.also) if name in known]
    if twice:
        raise ValueError(f"{', '.join(twice)} is entered twice.")
    odd = [name for name in (one.id, *one.also) if not ID.fullmatch(name)]
    if one.holds not in get_args(Holds) or (one.holds != "yes" and one.kind != "claim"):
        raise ValueError(f"{one.id}: holds is {one.holds!r}; a claim holds, partly or not, and nothing else does.")
    if odd or one.kind not in get_args(Kind) or one.cost not in get_args(Cost) or not one.title:
        raise ValueError(f"The item {one.id} needs an id like 003-5-02, a known kind and cost, and a docstring.")
    ITEMS[one.id] = one


def _source(function: Callable[..., Any]) -> str:
    """Without decorator and docstring."""
    text = textwrap.dedent(inspect.getsource(function))
    return re.sub(r'\n    """.*?"""', "", text[text.index("def ") :], count=1, flags=re.S).rstrip()


@dataclass(frozen=True)
class _Part:
    """A function, a class or a constant of a file, with the names that it uses."""

    code: str
    uses: frozenset[str]


@functools.cache
def _text(module: str) -> str:
    return inspect.getsource(sys.modules.get(module) or importlib.import_module(module))


@functools.cache
def _parts(module: str) -> dict[str, _Part]:
    """What stands at the top of a file by name, but for items and imports."""
    text, found = _text(module), {}
    for node in ast.parse(text).body:
        uses = frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and "item" not in uses:
            found[node.name] = _Part(_segment(text, node), uses)
        elif isinstance(node, ast.Assign):
            found.update(
                {one.id: _Part(_segment(text, node), uses) for one in node.targets if isinstance(one, ast.Name)}
            )
    return found


def _segment(text: str, node: ast.stmt) -> str:
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _names(code: CodeType) -> set[str]:
    """The names that a function uses, and the functions inside it."""
    inside = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names, inside))


def _unindent(text: str) -> str:
    lines = [line.removeprefix("    ") for line in text.strip("\n").splitlines()]
    return "\n".join(lines).strip()
