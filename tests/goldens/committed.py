"""A summary of the golden outputs, small enough to be committed, for machines without goldens of their own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.goldens import folders
from tests.goldens.collect import generated, outputs

TABLE = Path(__file__).parent / "committed.json"
SAMPLES = 6  # values that are kept of a tensor
TOLERANCE = 1e-5  # of the largest value


def table() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())
    return found


def summary(value: Tensor) -> dict[str, Any]:
    """Shape, largest absolute value and a few values spread over the tensor; all values of integers."""
    if not value.is_floating_point():
        return {"shape": list(value.shape), "all": value.flatten().tolist()}
    flat = value.double().flatten()
    where = torch.linspace(0, max(len(flat) - 1, 0), SAMPLES).long() if len(flat) else torch.zeros(0, dtype=torch.long)
    largest = float(flat.abs().max()) if len(flat) else 0.0
    return {"shape": list(value.shape), "largest": largest, "values": flat[where].tolist()}


def found(name: str) -> dict[str, Any]:
    """The summaries of one recipe: outputs and generated ids."""
    with tempfile.TemporaryDirectory() as home:
        rows = dict(outputs(name, Path(home))) | dict(generated(name, Path(home)))
    return {path: summary(value) for path, value in rows.items()}


def rewrite() -> None:
    torch.set_num_threads(1)
    rows = {name: found(name) for name in folders.table()}
    TABLE.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(row)}' for name, row in rows.items()) + "\n}\n")


def difference(now: dict[str, Any] | None, before: dict[str, Any]) -> str | None:
    """What is wrong with a summary, None if nothing is."""
    if now is None or now["shape"] != before["shape"]:
        return f"{now and now['shape']} instead of {before['shape']}"
    if "all" in before:
        return None if now.get("all") == before["all"] else "other ids"
    scale = max(before["largest"], 1e-6)
    pairs = zip([now["largest"], *now["values"]], [before["largest"], *before["values"]], strict=True)
    worst = max(abs(a - b) for a, b in pairs) / scale
    return None if worst <= TOLERANCE else f"off by {worst:.1e} of the largest value"
