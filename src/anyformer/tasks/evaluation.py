"""Evaluation of a model folder on a file: `anyformer eval`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anyformer import pretrained
from anyformer.data.files import Paths, check_paths
from anyformer.data.settings import DataSettings
from anyformer.errors import InputError, SkippedError
from anyformer.progress import progress_bar
from anyformer.tasks import find, task
from anyformer.tasks.base import Metrics, Source, spell_columns, spell_device, spell_header
from anyformer.tokenizers.cuts import count_cuts


@dataclass(frozen=True)
class EvalResult:
    """`metric` is the name of the main metric. `slots`: the boxes of each query, [rows, queries, 4]. `by`: the default
    model, if none was given."""

    path: str
    rows: int
    metric: str
    metrics: Metrics
    query_boxes: Any = None
    by: str = ""

    @property
    def skipped(self) -> int:
        return int(self.metrics.get("skipped", 0))

    def check(self) -> None:
        """An error if some rows could not be used, once everything else is printed."""
        if self.skipped:
            raise SkippedError(
                f"{self.skipped:,} of {self.rows:,} rows of {self.path} were skipped: their files cannot be read;"
                " the metrics cover the other rows."
            )


def evaluate_task(
    name: str,
    model: Source | None,
    data: Paths,
    *,
    columns: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
    device: str = "auto",
    dtype: str | None = None,
    draw: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> EvalResult:
    """The task's figures on the rows of a file; which column is what as said here, or as it was in training. No model:
    the one that ships. `options` of the task, where they differ from the folder's. `draw`: it must have queries that
    place boxes. `say` is told what was found out: the device, which column is what, how many texts were cut."""
    kind = find(name)
    check_paths("data", data)
    if draw and not kind.has_slots:
        raise InputError(f"{name} has no object queries to plot; leave --out out.")
    ready: Any = task(name, model, device=device, dtype=dtype, **options)
    usual = pretrained.default(name).name if model is None else ""
    said = ready.model.origin.settings.get("data", {})
    settings = DataSettings(**{key: said[key] for key in ("header", "format") if key in said})
    rows = kind.read(data, settings.replace(columns=columns or said.get("columns", "")))
    ready.detailed = True
    say(f"device: {spell_device(ready.model)}")
    say(f"columns: {spell_columns(rows)}")
    if (header := spell_header(rows)) is not None:
        say(f"header: {header}")
    with progress_bar(f"{name} on {rows.path}", stderr=True) as progress, count_cuts() as cuts:
        figures = ready.evaluate(rows, progress)
    if cuts:
        say(f"truncation: {cuts.by_row(rows)}")
    return EvalResult(rows.path, len(rows), ready.metric, figures, ready.slots, usual)


def note(text: str) -> None:
    """Print a message to standard error; standard output contains only results."""
    print(text, file=sys.stderr, flush=True)


def show(found: EvalResult) -> str:
    """The figure that counts first, then the others, then the signature."""
    numbers = {name: value for name, value in found.metrics.items() if name not in ("signature", "skipped")}
    ordered = sorted(numbers, key=lambda name: name != found.metric)
    width = max((len(name) for name in ordered), default=0)
    lines = [f"{name:<{width}}  {_number(numbers[name])}" for name in ordered]
    signature = [f"signature: {found.metrics['signature']}"] if "signature" in found.metrics else []
    by = f", by {found.by}" if found.by else ""
    count = f"{found.rows - found.skipped:,} of {found.rows:,}" if found.skipped else f"{found.rows:,}"
    return "\n".join([*lines, *signature, f"{count} rows of {found.path}{by}"])


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4f}"
