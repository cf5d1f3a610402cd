"""Comparing an anyformer output with the oracle's, field by field, padded positions aside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.checkpoints.oracles import Case

TOLERANCE = 2e-5  # relative to the largest value
CACHE = ("past_key_values", "cache_params")  # each library has its own form


def close(ours: Tensor, theirs: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    assert ours.shape == theirs.shape, f"{what}: {list(ours.shape)} instead of {list(theirs.shape)}"
    if theirs.numel() == 0:
        return
    scale = max(float(theirs.abs().max()), 1e-6)
    worst = float((ours.double() - theirs.double()).abs().max()) / scale
    assert worst <= tolerance, f"{what}: off by {worst:.2e} of the largest value"


def field_mask(case: Case, name: str, rows: int, length: int) -> Tensor | None:
    """What counts among a field's [rows, length]: the mask of the sequence that the field belongs to."""
    key = "encoder" if name.startswith("encoder") else name.partition(".")[0] if "." in name else ""
    mask = case.masks.get(key)
    if mask is None:
        return None
    mask = mask.reshape(-1, mask.shape[-1])
    return mask.bool() if mask.shape == (rows, length) else None


def flat(fields: Any, path: str = "") -> dict[str, Any]:
    """Outputs inside an output under dotted names."""
    found = {}
    for name in fields:
        value = fields[name]
        found |= flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {path + name: value}
    return found


def compare(ours: Any, theirs: Any, case: Case, tolerance: float = TOLERANCE) -> list[str]:
    """Assert that every field of theirs is there and equal; returns the names that were compared."""
    ours, theirs = flat(ours), flat(theirs)
    names = [name for name in theirs if name not in CACHE and theirs[name] is not None]
    for name in names:
        mine = ours[name]
        if isinstance(theirs[name], tuple):
            assert len(mine) == len(theirs[name]), f"{name}: {len(mine)} entries instead of {len(theirs[name])}"
            for i, (a, b) in enumerate(zip(mine, theirs[name], strict=True)):
                compare_one(a, b, case, f"{name}[{i}]", tolerance)
        elif isinstance(theirs[name], Tensor):
            compare_one(mine, theirs[name], case, name, tolerance)
    return names


def compare_one(a: Tensor, b: Tensor, case: Case, name: str, tolerance: float = TOLERANCE) -> None:
    if b.dim() == 4 and "attentions" in name:  # [B, H, Q, K]: queries that are padded mean nothing
        mask = field_mask(case, name, b.shape[0], b.shape[2])
        if mask is not None:
            keep = mask[:, None, :, None].expand_as(b)
            a, b = torch.where(keep, a, 0), torch.where(keep, b, 0)
    elif b.dim() in (2, 3) and not name.startswith(("loss", "mask", "ids_restore")):
        mask = field_mask(case, name, b.shape[0], b.shape[1])
        if mask is not None:
            keep = mask if b.dim() == 2 else mask[:, :, None].expand_as(b)
            assert float(a.masked_fill(keep, 0).abs().max()) == 0, f"{name}: padded positions are not zeros"
            a, b = torch.where(keep, a, 0), torch.where(keep, b, 0)
    close(a, b, name, tolerance)
