"""Chunked cross entropy over a large vocabulary: no float32 copy of all logits is made, neither for the loss nor for
the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import rewrites
from anyformer.core.tokens import Tokens
from anyformer.forward_context import IGNORED, check_labels, check_shape

HALVES = (torch.float16, torch.bfloat16)
ALL_AT_ONCE = 2**24  # up to this many logits are handled in one chunk: 64 MB in float32
PIECE = 2**22  # logits per chunk on CPU, which fit its cache
GPU_PIECE = 2**27  # logits per chunk on GPU, 512 MB in float32: few kernel launches


def token_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropy of logits [..., vocab_size] over the labels that are not -100, and their number."""
    flat, wanted = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return summed_cross_entropy(flat, wanted, smoothing), (wanted != IGNORED).sum()


def mean_token_loss(tokens: Tokens, logits: Tensor, labels: Tensor, name: str = "labels") -> Tensor:
    """The mean over the labels [B, T] of per-token logits, packed or padded."""
    expected = tokens.packing.mask.shape if tokens.packing is not None else logits.shape[:2]
    check_shape(labels, name, *expected)
    labels = tokens.packing.pack(labels) if tokens.packing is not None else labels.flatten()
    check_labels(labels, logits.shape[-1], name)
    total, count = token_loss(logits, labels)
    return total / count


def summed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum of the cross entropy of logits [N, vocab_size] over the labels [N] that are not -100, with label smoothing
    (Vaswani et al. 2017, §5.4).
    """
    if _has_kernel(logits):
        return rewrites.apply("cross_entropy")(logits, labels.contiguous(), smoothing)
    if torch.compiler.is_compiling() or logits.numel() <= ALL_AT_ONCE:  # the compiler fuses the copy away
        wide = logits.float() if logits.dtype in HALVES else logits
        return F.cross_entropy(wide, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
    total: Tensor = _Piecewise.apply(logits, labels, smoothing)
    return total


def _has_kernel(logits: Tensor) -> bool:
    if not (logits.is_cuda and logits.dtype in HALVES and logits.stride(1) == 1 and "cross_entropy" in rewrites.RULES):
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
            target_logits = piece.gather(1, wanted.clamp(min=0)[:, None])[:, 0]
            each = norm - (1 - smoothing) * target_logits - (smoothing * piece.mean(dim=1) if smoothing else 0.0)
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
            probs = (piece - norms[start:end, None]).exp_()
            if ctx.smoothing:
                probs -= ctx.smoothing / logits.shape[1]
            right = torch.full_like(probs[:, :1], ctx.smoothing - 1)
            probs.scatter_add_(1, wanted.clamp(min=0)[:, None], right)
            gradient[start:end] = probs * (above[0] * (wanted != IGNORED))[:, None]
            start = end
        return gradient, None, None


def _pieces(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    rows = max((GPU_PIECE if logits.is_cuda else PIECE) // logits.shape[1], 1)
    for start in range(0, len(logits), rows):
        yield logits[start : start + rows].to(_wide(logits)), labels[start : start + rows]


def _wide(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
