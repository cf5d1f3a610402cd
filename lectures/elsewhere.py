"""Where else an item is shown: stops of the explorer's lecture and experiments name their items; this reads it back."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .item import Item
from .run import ROOT

STOPS = ROOT / "src" / "anyformer" / "explorer" / "static" / "stops.json"


@dataclass(frozen=True)
class Place:
    name: str  # "explorer stop 12" or "experiments/05_paths.py"
    title: str
    items: tuple[str, ...]
    page: str = ""  # what came out: "docs/experiments/05-paths.md"

    def __str__(self) -> str:
        return f"{self.name}: {self.title}" + (f" ({self.page})" if self.page else "")


@functools.cache
def places() -> dict[str, Place]:
    scripts = sorted((ROOT / "experiments").glob("[0-9][0-9]_*.py"))
    return {one.name: one for one in (*_stops(), *map(_experiment, scripts))}


def elsewhere(item: Item) -> list[Place]:
    """The places that show an item, by its id or by another deck's id for it."""
    ids = {item.id, *item.also}
    return [one for one in places().values() if ids & set(one.items)]


def _stops() -> Iterator[Place]:
    for number, stop in enumerate(json.loads(STOPS.read_text(encoding="utf-8")), 1):
        yield Place(f"explorer stop {number}", stop["title"], tuple(stop["items"]))


def _experiment(script: Path) -> Place:
    """Read and not run: some scripts need packages or data that are not here."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (claim,) = [one for one in calls if isinstance(one.func, ast.Name) and one.func.id == "Claim"]
    said = {one.arg: one.value for one in claim.keywords}
    title, items = (ast.literal_eval(said[name]) for name in ("title", "items"))
    stem = script.stem.replace("_", "-")
    return Place(f"experiments/{script.name}", title, tuple(items), f"docs/experiments/{stem}.md")
