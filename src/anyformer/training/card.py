"""The card of a model that was trained here, README.md: what it does, from what it was trained, how good it is."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer.checkpoints.hf import CARD
from anyformer.config import plain
from anyformer.data.files import Paths
from anyformer.tasks.split import Split
from anyformer.training.report import METRICS, read_metrics
from anyformer.training.state import TrainState
from anyformer.version import __version__

SHOWN = 8  # metrics beside the one that counts


def write_card(
    folder: Path,
    *,
    task: str,
    about: str,
    base: str,
    command: str,
    use: str,
    split: Split,
    metric: str,
    state: TrainState,
) -> None:
    """Write the card of the model that a run left in `folder`."""
    lines = [
        f"# {folder.resolve().name}: {task}",
        f"A model for the task `{task}` ({about}), trained with anyformer {__version__}.",
        f"- Base model: {base}",
        f"- Training data: {split.train.path}, {len(split.train):,} rows",
        f"- Steps: {state.step:,}",
        *_scores(folder, split, metric, state),
        f"Trained by:\n\n    {command}",
        f"Use it:\n\n    {use}",
    ]
    draft = folder / f".{CARD}"
    draft.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    os.replace(draft, folder / CARD)


def _scores(folder: Path, split: Split, metric: str, state: TrainState) -> list[str]:
    """The metrics of the evaluation whose weights were kept."""
    if split.valid is None or state.best is None:
        return ["It was not evaluated."]
    rows = read_metrics(folder / METRICS)
    kept: Mapping[str, Any] = next(
        (row for row in reversed(rows) if "split" in row and row["step"] == state.best_step), {}
    )
    others = [name for name, value in kept.items() if isinstance(value, float) and name not in (metric, "seconds")]
    listed = [
        f"- {name}: {value:.4g}" for name, value in ((metric, state.best), *((n, kept[n]) for n in others[:SHOWN]))
    ]
    how = f"on {len(split.valid):,} rows ({split.how})"
    return [f"Scores {how}, at step {state.best_step:,}, which they chose; on new data expect less:", *listed]


def command_of(task: str, recipe: str, data: Paths, valid: Paths | None, out: Path, given: Mapping[str, Any]) -> str:
    """The command that trains this model; settings that were given in Python are spelled as --set."""
    words = ["anyformer", "train", task, "--recipe", recipe]
    words += [word for path in _each(data) for word in ("--data", path)]
    words += [word for path in _each(valid or ()) for word in ("--valid", path)]
    words += ["--out", str(out)]
    words += [word for name, value in given.items() for word in ("--set", f"{name}={spell(value)}")]
    return shlex.join(words)


def _each(paths: Paths) -> Sequence[str]:
    return [os.fspath(paths)] if isinstance(paths, (str, os.PathLike)) else [os.fspath(path) for path in paths]


def spell(value: Any) -> str:
    """A value as --set takes it."""
    return value if isinstance(value, str) else json.dumps(plain(value))
