"""Model folders as an earlier version wrote them, with weights computed from the names of the tensors.

`folders.json` holds the config.json and the names and shapes of the tensors of every tiny recipe. It is not rewritten
when names change: folders saved in the past must keep loading.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

TABLE = Path(__file__).parent / "folders.json"
RENAMED = {"joints-tiny": "keypoint-detr-tiny"}  # recipes that had another name when the table was written


def table() -> dict[str, dict[str, Any]]:
    """Recipe name -> {"config": …, "tensors": {name: [dtype, *shape]}}."""
    found: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())
    return found


def recipe(name: str) -> str:
    """Today's name of a recipe of the table."""
    return RENAMED.get(name, name)


def describe(folder: Path) -> dict[str, Any]:
    """The row of the table for a saved folder."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: [one.get_dtype(), *one.get_shape()] for name, one in tensors.items()}
    return {"config": json.loads((folder / "config.json").read_text()), "tensors": shapes}


def write(name: str, folder: Path) -> Path:
    """A folder of the recipe, as it was saved when the table was written."""
    row = table()[name]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(row["config"]))
    tensors = {key: fill(key, kind, shape) for key, (kind, *shape) in row["tensors"].items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def fill(name: str, kind: str, shape: list[int]) -> Tensor:
    """Values that depend on the name alone. RandomState's stream is the same in every version of NumPy."""
    if kind != "F32":
        return torch.zeros(shape, dtype={"I64": torch.int64, "BOOL": torch.bool}[kind])
    random = np.random.RandomState(zlib.crc32(name.encode()))
    values = torch.from_numpy(random.standard_normal(shape).astype(np.float32))
    if name.endswith("running_var"):
        return values.abs() + 0.5
    if len(shape) == 1 and name.endswith(("weight", "gain", "scale")):  # of a norm
        return 1 + 0.1 * values
    return values * (0.1 if len(shape) < 2 else min(0.5, 1.5 / shape[-1] ** 0.5))
