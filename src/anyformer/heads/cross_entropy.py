"""Cross entropy over a large vocabulary, a few rows at a time: no float32 copy of all logits is ever made, neither for
the loss nor for its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.linear import HALVES, HAS_TRITON
from anyformer.heads.base import IGNORED

ALL_AT_ONCE = 2**24  # logits that may as well be handled together: 64 MB as float32
PIECE = 2**22  # logits handled at a time otherwise: as many as a CPU's caches like
GPU_PIECE = 2**27  # half a gigabyte as float32: few launches, and little beside the logits themselves


def summed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The sum over the labels [N] that count (-100 does not) of the cross entropy of logits [N, words]; `smoothing` of
    a label's weight goes to all words alike (Vaswani et al. 2017, §5.4)."""
    if _has_kernel(logits):
        from anyformer.core.gpu_training import summed_entropy

        return summed_entropy(logits, labels.contiguous(), smoothing)
    if torch.compiler.is_compiling() or logits.numel() <= ALL_AT_ONCE:  # which fuses what would be a copy
        wide = logits.float() if logits.dtype in HALVES else logits
        return F.cross_entropy(wide, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
    total: Tensor = _Piecewise.apply(logits, labels, smoothing)
    return total


def _has_kernel(logits: Tensor) -> bool:
    if not (HAS_TRITON and logits.is_cuda and logits.dtype in HALVES and logits.stride(1) == 1):
        return False
    if torch.compiler.is_compiling():
        return True
    return logits.numel() > ALL_AT_ONCE and logits.device.index == torch.cuda.current_device()


class _Piecewise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        norms = []
        total = torch.zeros((), dtype=_wide(logits), device=logits.device)
        for piece, wanted in _pieces(logits, labels):
            norm = piece.logsumexp(dim=1)
            said = piece.gather(1, wanted.clamp(min=0)[:, None])[:, 0]
            each = norm - (1 - smoothing) * said - (smoothing * piece.mean(dim=1) if smoothing else 0.0)
            total += each.masked_fill(wanted == IGNORED, 0.0).sum()
            norms.append(norm)
        ctx.save_for_backward(logits, labels, torch.cat(norms))
        ctx.smoothing = smoothing
        return total

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor, None, None]:
        logits, labels, norms = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        start = 0
        for piece, wanted in _pieces(logits, labels):
            end = start + len(piece)
            chances = (piece - norms[start:end, None]).exp_()
            if ctx.smoothing:
                chances -= ctx.smoothing / logits.shape[1]
            right = torch.full_like(chances[:, :1], ctx.smoothing - 1)
            chances.scatter_add_(1, wanted.clamp(min=0)[:, None], right)
            gradient[start:end] = chances * (above[0] * (wanted != IGNORED))[:, None]
            start = end
        return gradient, None, None


def _pieces(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    rows = max((GPU_PIECE if logits.is_cuda else PIECE) // logits.shape[1], 1)
    for start in range(0, len(logits), rows):
        yield logits[start : start + rows].to(_wide(logits)), labels[start : start + rows]


def _wide(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
