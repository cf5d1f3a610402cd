"""What several items need: shipped models, inputs that come along, figures, documented results."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import anyformer as af

from .run import ROOT, NeedsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS = ROOT / "models" / "notes" / "inputs"  # ship.jpg, face.jpg, cells.jpg, portrait.jpg, line.png, seven.wav


@functools.cache
def shipped(task: str, name: str | None = None) -> Any:
    """A task with a model that comes along; the item is skipped where the model is not here."""
    try:
        return af.task(task, name) if name else af.task(task)
    except af.FolderError as error:
        raise NeedsError(str(error)) from None


def given(name: str) -> str:
    """The path of an input that comes along."""
    if not (INPUTS / name).exists():
        raise NeedsError(f"needs models/notes/inputs/{name} of a checkout")
    return str(INPUTS / name)


def documented(page: str, pattern: str) -> tuple[str, ...]:
    """What a page of documented results says: the groups of a pattern that must be on it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(pattern, text)
    assert found, f"docs/{page} does not say {pattern}"
    return found.groups() or (found[0],)


def refusal(call: Callable[[], object]) -> str:
    """The sentence by which a call is refused."""
    try:
        call()
    except af.Error as error:
        return str(error)
    raise AssertionError("the call was not refused")


def figure(width: float = 6, height: float = 3, columns: int = 1, rows: int = 1) -> tuple[Figure, Any]:
    """A figure with its axes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained")
    return drawn, drawn.subplots(rows, columns)


def heatmap(
    grids: Sequence[Any], titles: Sequence[str], labels: tuple[str, str] = ("key", "query"), size: float = 2.6
) -> Figure:
    """Matrices side by side, dark where large."""
    drawn, axes = figure(size * len(grids), size, columns=len(grids))
    for one, grid, title in zip([axes] if len(grids) == 1 else axes, grids, titles, strict=True):
        one.imshow(grid, cmap="Blues", vmin=0)
        one.set(title=title, xlabel=labels[0], ylabel=labels[1])
    return drawn


def verdict(page: str, expected: str) -> str:
    """The verdict of an experiment's page in its words; its first words must be those expected."""
    said = documented(f"experiments/{page}.md", r"\*\*Verdict: ([\s\S]*?)\n\n")[0].replace("**", "")
    words = " ".join(said.split())
    assert words.startswith(f"{expected}. "), f"docs/experiments/{page}.md says: {words}"
    return words
