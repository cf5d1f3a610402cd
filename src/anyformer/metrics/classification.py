"""Metrics of classification and regression: confusion matrix, F1, Matthews, Pearson and Spearman correlation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anyformer.errors import InputError


def accuracy(predictions: Sequence[Any], targets: Sequence[Any]) -> float:
    _alike(predictions, targets)
    return float(np.mean([a == b for a, b in zip(predictions, targets, strict=True)]))


def confusion(predictions: Sequence[Any], targets: Sequence[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the sorted classes and the confusion matrix [target, prediction]."""
    _alike(predictions, targets)
    classes = sorted(set(targets) | set(predictions))
    place = {name: i for i, name in enumerate(classes)}
    table = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(table, ([place[name] for name in targets], [place[name] for name in predictions]), 1)
    return classes, table


def f1(
    predictions: Sequence[Any],
    targets: Sequence[Any],
    *,
    positive: Any = None,
    average: Literal["macro", "micro"] = "macro",
) -> float:
    """F1 of the class `positive`, or the mean over classes (macro), or over all decisions (micro)."""
    classes, table = confusion(predictions, targets)
    hits, predicted, actual = table.diagonal(), table.sum(axis=0), table.sum(axis=1)
    if positive is not None:
        if positive not in classes:
            return 0.0
        i = classes.index(positive)
        return float(2 * hits[i] / max(predicted[i] + actual[i], 1))
    if average == "micro":
        return float(2 * hits.sum() / (predicted.sum() + actual.sum()))
    return float(np.mean(2 * hits / np.maximum(predicted + actual, 1)))


def matthews_corrcoef(predictions: Sequence[Any], targets: Sequence[Any]) -> float:
    """Matthews correlation coefficient for any number of classes (Gorodkin 2004); 0 if one side is constant."""
    _, table = confusion(predictions, targets)
    predicted, actual = table.sum(axis=0).astype(float), table.sum(axis=1).astype(float)
    n = float(table.sum())
    spread = (n * n - predicted @ predicted) * (n * n - actual @ actual)
    return float((np.trace(table) * n - predicted @ actual) / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(predictions: Sequence[float], targets: Sequence[float]) -> float:
    """Pearson correlation; 0 if one side is constant, NaN if one holds NaN."""
    _alike(predictions, targets)
    x, y = (np.asarray(side, dtype=np.float64) for side in (predictions, targets))
    if np.isnan(x).any() or np.isnan(y).any():
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    spread = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / spread) if spread > 0 else 0.0


def spearman(predictions: Sequence[float], targets: Sequence[float]) -> float:
    """Spearman rank correlation; equal numbers share their mean rank. NaN if one side holds NaN."""
    _alike(predictions, targets)
    return pearson(list(_ranks(predictions)), list(_ranks(targets)))


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    _, place, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found = (ends - (counts - 1) / 2)[place]
    return np.where(np.isnan(values), np.nan, found)


def _alike(predictions: Sequence[Any], targets: Sequence[Any]) -> None:
    if len(predictions) != len(targets) or not len(targets):
        raise InputError(f"There are {len(predictions)} predictions for {len(targets)} targets; give one for each.")
