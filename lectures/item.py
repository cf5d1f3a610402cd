"""What an item is: an id, a function that shows it and asserts it, and what is known of it."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Kind = Literal["system", "mechanism", "formula", "figure", "table", "claim", "example", "reference"]
Cost = Literal["fast", "slow", "training", "gpu"]
Status = Literal["works", "partly", "missing", "unavailable"]
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
    wrong: Mapping[str, Any] = field(default_factory=dict)  # arguments that must break the assertions
    show: Callable[..., Any] | None = None
    code: str = ""  # of `show`, as it was when it was loaded: a file may change while its items run

    @property
    def deck(self) -> str:
        return self.id[:3]

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
    wrong: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function as an item. `partly` says what is missing of it."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        title, _, about = (function.__doc__ or "").strip().partition("\n")
        status: Status = "partly" if partly else "works"
        texts = title, _unindent(about)
        code = _source(function)
        _enter(Item(id, *texts, kind, cost, tuple(also), status, partly, wrong or {}, function, code))
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
    if odd or one.kind not in get_args(Kind) or one.cost not in get_args(Cost) or not one.title:
        raise ValueError(f"The item {one.id} needs an id like 003-5-02, a known kind and cost, and a docstring.")
    ITEMS[one.id] = one


def _source(function: Callable[..., Any]) -> str:
    """Without decorator and docstring."""
    text = textwrap.dedent(inspect.getsource(function))
    return re.sub(r'\n    """.*?"""', "", text[text.index("def ") :], count=1, flags=re.S).rstrip()


def _unindent(text: str) -> str:
    lines = [line.removeprefix("    ") for line in text.strip("\n").splitlines()]
    return "\n".join(lines).strip()
