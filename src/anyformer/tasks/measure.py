"""A folder measured on a file: `anyformer eval`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anyformer import shipped
from anyformer.data.files import Paths
from anyformer.data.settings import DataSettings
from anyformer.errors import InputError
from anyformer.tasks import find, task
from anyformer.tasks.base import Figures, Progress, Source


@dataclass(frozen=True)
class Measured:
    """`metric` names the figure that counts. `slots`: where each query put its box, [rows, queries, 4]. `by`: the model
    that ships, where nobody named one."""

    path: str
    rows: int
    metric: str
    figures: Figures
    slots: Any = None
    by: str = ""


def measure(
    name: str,
    model: Source | None,
    data: Paths,
    *,
    columns: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
    device: str = "cpu",
    dtype: str | None = None,
    draw: bool = False,
) -> Measured:
    """The task's figures on the rows of a file; which column is what as said here, or as it was in training. No model:
    the one that ships. `options` of the task, where they differ from the folder's. `draw`: it must have queries that
    place boxes."""
    kind = find(name)
    if draw and not kind.has_slots:
        raise InputError(f"{name} has no queries that place boxes, so eval has nothing to draw: leave --out away.")
    ready: Any = task(name, model, device=device, dtype=dtype, **options)
    usual = shipped.default(name).name if model is None else ""
    said = ready.model.origin.settings.get("data", {})
    settings = DataSettings(**{key: said[key] for key in ("header", "format") if key in said})
    rows = kind.read(data, settings.replace(columns=columns or said.get("columns", "")))
    ready.detailed = True
    with progress_bar(f"{name} on {rows.path}") as progress:
        figures = ready.evaluate(rows, progress)
    return Measured(rows.path, len(rows), ready.metric, figures, ready.slots, usual)


def show(found: Measured) -> str:
    """The figure that counts first, then the others, then the signature."""
    numbers = {name: value for name, value in found.figures.items() if name != "signature"}
    ordered = sorted(numbers, key=lambda name: name != found.metric)
    width = max((len(name) for name in ordered), default=0)
    lines = [f"{name:<{width}}  {_number(numbers[name])}" for name in ordered]
    signature = [f"signature: {found.figures['signature']}"] if "signature" in found.figures else []
    by = f", by {found.by}" if found.by else ""
    return "\n".join([*lines, *signature, f"{found.rows:,} rows of {found.path}{by}"])


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4f}"


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """Where someone watches, a bar on standard error."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        job = bar.add_task(title, total=None)

        def move(done: int, total: int) -> None:
            bar.update(job, completed=done, total=total)

        yield move
