"""Padding rows of ids to tensors, and truncating texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.errors import InputError

Ids = NDArray[Any]


def pad(
    rows: Sequence[Sequence[int] | Ids],
    value: int,
    side: str = "right",
    more: Mapping[str, Sequence[Sequence[int] | Ids]] | None = None,
) -> dict[str, Tensor]:
    """Pad rows of ids to tensors {input_ids, attention_mask} of one length, and the rows in `more` with 0."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    positions = np.arange(lengths.max(initial=0))
    real = positions < lengths[:, None] if side == "right" else positions[::-1] < lengths[:, None]

    def fill(values: Sequence[Sequence[int] | Ids], rest: int) -> Tensor:
        table = np.full(real.shape, rest, dtype=np.int64)
        if len(values) and isinstance(values[0], np.ndarray):
            table[real] = np.concatenate([np.asarray(row) for row in values])
        else:
            table[real] = np.fromiter(chain.from_iterable(values), dtype=np.int64, count=int(lengths.sum()))
        return torch.from_numpy(table)

    batch = {"input_ids": fill(rows, value), "attention_mask": torch.from_numpy(real.astype(np.int64))}
    return batch | {name: fill(values, 0) for name, values in (more or {}).items()}


def plain(ids: Sequence[int] | Tensor) -> list[int]:
    return [int(i) for i in (ids.tolist() if isinstance(ids, Tensor) else ids)]


def token_budget(engine: Any, max_length: int, pair: bool, special: bool) -> int:
    """Return how many tokens of the texts themselves fit into `max_length`."""
    return beside(engine.num_special_tokens_to_add(pair) if special else 0, max_length)


def beside(added: int, max_length: int) -> int:
    """Return how many tokens fit into `max_length` besides special ones; raise an error if none do."""
    if max_length <= added:
        raise InputError(f"max_length is {max_length}; with {added} special tokens it must be at least {added + 1}.")
    return max_length - added


def truncate(engine: Any, first: list[Any], second: list[Any] | None, max_length: int, special: bool) -> list[Any]:
    """Truncate encodings without special tokens to fit, then add those. The longer text of a pair is cut first."""
    left = token_budget(engine, max_length, second is not None, special)
    rows = []
    for i, one in enumerate(first):
        other = second[i] if second is not None else None
        keep_one, keep_other = truncate_pair(len(one.ids), len(other.ids) if other is not None else 0, left)
        one.truncate(keep_one)
        if other is not None:
            other.truncate(keep_other)
        rows.append(engine.post_process(one, other, special))
    return rows


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the truncated lengths of a pair: the longer one is cut until both are equal.  (9, 3, 8) -> (5, 3)"""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (short, room - short) if first <= second else (room - short, short)
