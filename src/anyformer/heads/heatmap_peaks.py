"""Subpixel peaks of heat maps: DARK (Zhang et al. 2020), as in unbiased data processing.

The map is smoothed, and a parabola is fitted to its logarithm around the highest cell; its maximum is the position.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.host import widest

KERNEL = 11  # size of the smoothing kernel, in cells
WIDTH = 0.8  # standard deviation of the kernel
LOWEST, HIGHEST = 0.001, 50.0  # the map is clamped to these bounds before the logarithm


def find_peaks(maps: Tensor, kernel: int = KERNEL) -> tuple[Tensor, Tensor]:
    """[B, keypoints, rows, columns] -> positions [B, keypoints, 2] as (column, row) in cells, scores [B, keypoints]."""
    columns = maps.shape[3]
    scores, index = maps.flatten(2).max(dim=2)
    top = torch.stack([index % columns, index // columns], dim=-1)
    with torch.autocast(maps.device.type, enabled=False):
        smooth = _smooth(maps, (kernel - 1) // 2).clamp(LOWEST, HIGHEST).log()
        return top - _offset(smooth, top), scores


def _smooth(maps: Tensor, radius: int) -> Tensor:
    reach = torch.arange(-radius, radius + 1, device=maps.device, dtype=maps.dtype)
    weights = torch.exp(-0.5 * (reach / WIDTH).square())
    weights = (weights / weights.sum()).view(1, 1, -1)
    for axis in (2, 3):
        lines = maps.transpose(axis, 3)
        n = lines.shape[3]
        at = torch.arange(-radius, n + radius, device=maps.device) % (2 * n)
        lines = lines[..., torch.where(at < n, at, 2 * n - 1 - at)]  # reflected at the edges
        maps = F.conv1d(lines.flatten(0, 2).unsqueeze(1), weights).view(*lines.shape[:3], n).transpose(axis, 3)
    return maps


def _offset(maps: Tensor, top: Tensor) -> Tensor:
    """Offset of the highest cell from the parabola's maximum: inverse Hessian times gradient."""
    padded = F.pad(maps, (1, 1, 1, 1), mode="replicate")
    columns = padded.shape[3]
    middle = (top[..., 1] + 1) * columns + top[..., 0] + 1
    flat = padded.flatten(2)

    def at(right: int, down: int) -> Tensor:
        return flat.gather(2, (middle + down * columns + right).unsqueeze(-1)).squeeze(-1)

    here = at(0, 0)
    slope = torch.stack([at(1, 0) - at(-1, 0), at(0, 1) - at(0, -1)], dim=-1) / 2
    xx = at(1, 0) - 2 * here + at(-1, 0)
    yy = at(0, 1) - 2 * here + at(0, -1)
    xy = (at(1, 1) - at(1, 0) - at(0, 1) + 2 * here - at(-1, 0) - at(0, -1) + at(-1, -1)) / 2
    curve = torch.stack([xx, xy, xy, yy], dim=-1).unflatten(-1, (2, 2))
    wide = widest(maps.device)
    curve = curve.to(wide) + torch.finfo(torch.float32).eps * torch.eye(2, device=maps.device, dtype=wide)
    step = torch.linalg.solve_ex(curve, slope.to(wide).unsqueeze(-1))[0].squeeze(-1)
    return torch.nan_to_num(step, 0.0, 0.0, 0.0).to(maps.dtype)
