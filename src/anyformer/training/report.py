"""What a run leaves behind to be read: metrics.jsonl, report.html and a summary."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.errors import FolderError
from anyformer.jsonfile import parse_object, read_bytes
from anyformer.schema import fits
from anyformer.training.callbacks import Callback, Progress
from anyformer.training.display import duration
from anyformer.training.energy import describe
from anyformer.training.state import TrainState
from anyformer.training.step_metrics import StepMetrics
from anyformer.training.work import Metrics

METRICS, REPORT = "metrics.jsonl", "report.html"


class MetricsFile(Callback):
    """One JSON object a line. Where a run goes back to a checkpoint, what came after it is written anew."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / METRICS

    def on_train_begin(self, progress: Progress) -> None:
        kept = [row for row in read_metrics(self.path) if row["step"] <= progress.step]
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(as_line(row) for row in kept), encoding="utf-8")
        os.replace(draft, self.path)

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        row = {"step": metrics.step, "loss": metrics.loss, "lr": metrics.lr, "gradient_norm": metrics.norm}
        if (speed := progress.tokens_per_second) is not None:
            row[f"{progress.unit}_per_second"] = round(speed, 1)
        self._add({**row, **metrics.parts, "waiting": round(progress.waiting, 4)})

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        if metrics:
            seconds = round(progress.state.seconds, 1)  # of work until then: how long it took to become so good
            self._add({"step": progress.step, "split": "valid", **metrics, "seconds": seconds})

    def _add(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(as_line(row))


def as_line(row: Mapping[str, Any]) -> str:
    """A row as JSON, which has no NaN and no infinity: those are null."""
    finite = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole rows; one that was being written when the machine died, or that is none, is left out."""
    lines = read_bytes(path).decode("utf-8", "replace").splitlines() if path.exists() else []
    return [row for line in lines if fits((row := _row(line, path)).get("step"), int)]


def _row(line: str, path: Path) -> dict[str, Any]:
    try:
        return parse_object(line, str(path))
    except FolderError:
        return {}


def summary(state: TrainState, metric: str, unit: str, how: str, use: str) -> list[str]:
    """What the user reads at the end."""
    best = [] if state.best is None else [f"best {metric}: {state.best:.4g}, at step {state.best_step:,}"]
    lines = [*best, f"{state.step:,} steps, {state.tokens:,} {unit} in {duration(state.seconds)}"]
    first, *shares = describe(state.energy, how)
    return [*lines, first, *(f"  {share}" for share in shares), f"use it: {use}"]


def write_report(folder: Path, title: str, lines: Sequence[str], settings: Mapping[str, Any]) -> Path:
    """One page that needs nothing else: the summary, a curve for every figure, the settings."""
    rows = read_metrics(folder / METRICS)
    curves = [draw(name, points) for name, points in series(rows).items()]
    table = "".join(f"<tr><td>{_text(key)}</td><td>{_text(value)}</td></tr>" for key, value in settings.items())
    page = PAGE.format(title=_text(title), summary=_text("\n".join(lines)), curves="\n".join(curves), settings=table)
    path = folder / REPORT
    draft = path.with_suffix(".draft")
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, path)
    return path


def series(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Figure -> (step, value), those of the evaluations first."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: "split" not in row):
        prefix = f"{row['split']} " if "split" in row else "training "
        for name, value in row.items():
            if name not in ("step", "split", "seconds") and isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(prefix + name, []).append((row["step"], value))
    return found


def draw(name: str, points: Sequence[tuple[float, float]], width: int = 560, height: int = 220) -> str:
    """A curve as SVG, with its ends and its extremes written beside it."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(ys), max(ys)
    across, up = (max(xs) - min(xs)) or 1.0, (high - low) or 1.0
    places = " ".join(
        f"{60 + (x - min(xs)) / across * (width - 80):.1f},{height - 30 - (y - low) / up * (height - 60):.1f}"
        for x, y in points
    )
    return (
        f'<figure><figcaption>{_text(name)}: {ys[-1]:.4g}</figcaption><svg viewBox="0 0 {width} {height}">'
        f'<text x="4" y="34">{high:.4g}</text><text x="4" y="{height - 28}">{low:.4g}</text>'
        f'<text x="60" y="{height - 8}">{min(xs):,.0f}</text>'
        f'<text x="{width - 20}" y="{height - 8}" text-anchor="end">step {max(xs):,.0f}</text>'
        f'<polyline points="{places}" fill="none" stroke="#1f6feb" stroke-width="1.5"/></svg></figure>'
    )


def _text(value: Any) -> str:
    return html.escape(str(value))


PAGE = """<!doctype html>
<meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em}}
figure{{display:inline-block;width:560px;max-width:100%;margin:1em 1em 0 0}}svg{{width:100%;border:1px solid #ccc}}
svg text{{font-size:11px;fill:#555}}td{{padding:0 1em 0 0;font-family:monospace}}</style>
<h1>{title}</h1><pre>{summary}</pre>
{curves}
<h2>Settings</h2><table>{settings}</table>
"""
