"""Scores of models whose official test split is not at hand, on half of the rows that chose their checkpoint.

    python models/halves.py             # all six, about 5 minutes of one core
    python models/halves.py cells faces

A row belongs to the half if the first byte of the SHA-256 of "NAME NUMBER" is odd. These checkpoints were chosen before
there were halves, by both of them, so the scores are as optimistic as those on all rows. A model that is trained again
is chosen by the even half (`choosing_rows`) and scored on the odd one.

The interval holds the score of 95% of samples of rows: Wilson's for accuracies, else twice the standard error of a
jackknife that leaves out one of 20 parts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
from held_out import data_folder

from anyformer.data.settings import DataSettings
from anyformer.tasks import find, task

# Model: task, validation rows.
SETS = {
    "captions": ("caption", ("flickr8k/val_captions.json", "flickr8k/val_images.zip")),
    "cells": ("detect", ("bccd/val.json",)),
    "cifar10": ("classify-image", ("cifar10/val.npz",)),
    "digits": ("classify-audio", ("fsdd/val.tsv",)),
    "faces": ("pose", ("face_landmarks/val.json",)),
    "patches": ("reconstruct", ("cifar10/val.npz",)),
}
# Metrics that are no means over rows: the function that computes them from answers and targets.
SCORERS = {"captions": "anyformer.tasks.caption.caption_scores", "cells": "anyformer.tasks.detect.coco_metrics"}
PARTS = 20


def in_half(name: str, number: int) -> bool:
    return hashlib.sha256(f"{name} {number}".encode()).digest()[0] % 2 == 1


def choosing_rows(name: str, n: int) -> list[int]:
    """The rows that choose the checkpoint of a model that is trained again."""
    return [i for i in range(n) if not in_half(name, i)]


def wilson(share: float, n: int) -> tuple[float, float]:
    z = 1.96
    middle, spread = share + z * z / (2 * n), z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)


def jackknife(score: Callable[[list[int]], float], n: int) -> float:
    """Standard error of a score of `n` rows."""
    left = [score([i for i in range(n) if i % PARTS != part]) for part in range(PARTS)]
    return float(np.sqrt((PARTS - 1) * np.var(left)))


def measure(name: str) -> str:
    kind_name, files = SETS[name]
    ready: Any = task(kind_name, name)
    columns = ready.model.origin.settings.get("data", {}).get("columns", "")
    paths = [str(data_folder() / file) for file in files]
    every = find(kind_name).read(paths[0] if len(paths) == 1 else paths, DataSettings(columns=columns))
    rows = every.select(np.array([i for i in range(len(every)) if in_half(name, i)]))
    metric, n = ready.metric, len(rows)
    if name in SCORERS:
        calls: list[tuple[Sequence[Any], Sequence[Any]]] = []
        module, _, function = SCORERS[name].rpartition(".")
        scorer = getattr(sys.modules[module], function)

        def spy(answers: Sequence[Any], targets: Sequence[Any]) -> Any:
            calls.append((answers, targets))
            return scorer(answers, targets)

        with mock.patch(SCORERS[name], spy):
            found = ready.evaluate(rows)[metric]
        answers, targets = calls[0]
        error = jackknife(lambda some: scorer([answers[i] for i in some], [targets[i] for i in some])[metric], n)
    elif metric == "accuracy":
        found = ready.evaluate(rows)[metric]
        low, high = wilson(found, n)
        return f"{name}: {metric} {found:.4f} ({low:.4f} to {high:.4f}) on {n:,} of {len(every):,} rows"
    else:
        values = [ready.evaluate(rows.select(np.arange(part, n, PARTS)))[metric] for part in range(PARTS)]
        sizes = np.array([len(range(part, n, PARTS)) for part in range(PARTS)])
        found = float(np.dot(values, sizes) / n)
        left = [float((found * n - value * size) / (n - size)) for value, size in zip(values, sizes, strict=True)]
        error = float(np.sqrt((PARTS - 1) * np.var(left)))
    low, high = found - 1.96 * error, found + 1.96 * error
    return f"{name}: {metric} {found:.4f} ({low:.4f} to {high:.4f}) on {n:,} of {len(every):,} rows"


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SETS:
        print(measure(chosen), flush=True)
