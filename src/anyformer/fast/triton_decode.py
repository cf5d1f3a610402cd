"""Triton kernels for one decode step on a GPU, for which the usual kernels, made for many tokens at once, are slow.

With one token, launching kernels and waiting for weights takes most of the time. So a product of one row includes the
norm before it and the sum after it; a sum and the norm that follows it are one kernel; attention of one query writes
the newest key and reads only the filled columns, following a table of beam ancestors instead of moving keys. On GPUs
that support it, a kernel starts and prefetches its weights while the previous one still runs (`early`).

Triton comes with PyTorch for CUDA. Every kernel has an equivalent in plain PyTorch and is used only if it is faster.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language.extra import cuda

ACTIVATIONS = {None: 0, "linear": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
NORMS = {"LayerNorm": 1, "RMSNorm": 2, "OffsetRMSNorm": 3}
WIDEST = 4096  # the largest row that a program holds at a time


@cache
def supports_early_launch(device: torch.device) -> bool:
    """Whether a kernel can start before the previous one has ended (Hopper and newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


@triton.jit
def _follow(EARLY: tl.constexpr):
    """Let the next kernel start, then wait until the one before has ended. Only constants may be read before this."""
    if EARLY:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@triton.jit
def _activate(y, ACT: tl.constexpr):
    if ACT == 1:
        y = tl.maximum(y, 0.0)
    if ACT == 2:
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if ACT == 3:
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if ACT == 4:
        y = y * tl.sigmoid(y)
    return y


@triton.jit
def _spread(x, K: tl.constexpr, eps, NORM: tl.constexpr, BK: tl.constexpr):
    """The mean of x (0 for RMS norms) and the inverse of its standard deviation."""
    lane = tl.arange(0, BK)
    mean = 0.0
    if NORM == 1:
        for start in tl.static_range(0, K, BK):
            mean += tl.sum(tl.load(x + start + lane, mask=start + lane < K, other=0.0).to(tl.float32)) / K
    square = 0.0
    for start in tl.static_range(0, K, BK):
        inside = start + lane < K
        apart = tl.load(x + start + lane, mask=inside, other=0.0).to(tl.float32) - mean
        square += tl.sum(tl.where(inside, apart * apart, 0.0))
    return mean, tl.rsqrt(square / K + eps)


@triton.jit
def _normed(value, factor, added, mean, scale, NORM: tl.constexpr, SHIFT: tl.constexpr):
    if NORM == 3:
        factor += 1.0
    value = (value - mean) * scale * factor
    if SHIFT:
        value += added
    return value


@triton.jit
def _vector_linear(
    x, weight, bias, gain, shift, add, out, N, eps, K: tl.constexpr,
    NORM: tl.constexpr, SHIFT: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute out[n] = act(norm(x) · weight[n] + bias[n]) + add[n]; each program computes BN of the n."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    lane = tl.arange(0, BK)
    start_of = weight + n[:, None].to(tl.int64) * K
    real = (n < N)[:, None]
    ahead = tl.load(start_of + lane[None, :], mask=real & (lane < K)[None, :], other=0.0)
    _follow(EARLY)
    mean = 0.0
    scale = 1.0
    if NORM > 0:
        mean, scale = _spread(x, K, eps, NORM, BK)
    y = tl.zeros([BN], tl.float32)
    for start in tl.static_range(0, K, BK):
        k = start + lane
        value = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        if NORM > 0:
            factor = tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)
            added = 0.0
            if SHIFT:
                added = tl.load(shift + k, mask=k < K, other=0.0).to(tl.float32)
            value = _normed(value, factor, added, mean, scale, NORM, SHIFT)
        tile = ahead
        if start > 0:
            tile = tl.load(start_of + k[None, :], mask=real & (k < K)[None, :], other=0.0)
        y += tl.sum(tile.to(tl.float32) * tl.where(k < K, value, 0.0)[None, :], axis=1)
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    y = _activate(y, ACT)
    if ADD:
        y += tl.load(add + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=n < N)


def can_multiply(x: Tensor, weight: Tensor, norm: nn.Module | None = None, activation: str | None = None) -> bool:
    """Whether the kernel supports the product: one row, without gradients, and with a known norm and activation."""
    known = (norm is None or type(norm).__name__ in NORMS) and activation in ACTIVATIONS
    flat = x.is_contiguous() and weight.is_contiguous()
    return known and flat and not torch.is_grad_enabled() and x.dtype == weight.dtype != torch.float64


def _norm_arguments(norm: nn.Module | None, x: Tensor) -> tuple[Tensor, Tensor, float, int, bool]:
    """Weight, bias, epsilon, kind, and whether there is a bias; `x` stands for tensors that do not exist."""
    if norm is None:
        return x, x, 0.0, 0, False
    shift = getattr(norm, "bias", None)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else float(norm.eps)  # type: ignore[arg-type]
    kind = NORMS[type(norm).__name__]
    return norm.weight, shift if shift is not None else x, eps, kind, shift is not None  # type: ignore[return-value]


def vector_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: nn.Module | None = None,
    activation: str | None = None,
    add: Tensor | None = None,
) -> Tensor:
    """x [1, ..., K], weight [N, K] -> [1, ..., N]"""
    n, width = weight.shape
    out = x.new_empty(*x.shape[:-1], n)
    block = min(WIDEST, triton.next_power_of_2(width))
    rows = max(1, (8192 if n > 16384 else 4096) // block)  # rows of the matrix per program, as measured on an H200
    gain, shift, eps, kind, shifted = _norm_arguments(norm, x)
    _vector_linear[(triton.cdiv(n, rows),)](
        x, weight, bias if bias is not None else x, gain, shift, add if add is not None else x, out, n, eps, K=width,
        NORM=kind, SHIFT=shifted, BIAS=bias is not None, ACT=ACTIVATIONS[activation], ADD=add is not None, BN=rows,
        BK=block, EARLY=supports_early_launch(x.device), num_warps=4, **_launch(x.device),
    )  # fmt: skip
    return out


def _launch(device: torch.device) -> dict[str, bool]:
    return {"launch_pdl": True} if supports_early_launch(device) else {}


@triton.jit
def _add_norm(
    x, y, total, out, gain, shift, eps, K: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, KEEP: tl.constexpr,
    BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * K
    k = tl.arange(0, BK)
    inside = k < K
    factor = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    added = 0.0
    if SHIFT:
        added = tl.load(shift + k, mask=inside, other=0.0).to(tl.float32)
    _follow(EARLY)
    value = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + row + k, mask=inside, other=0.0).to(tl.float32)
    if KEEP:
        tl.store(total + row + k, value.to(total.dtype.element_ty), mask=inside)
    mean = 0.0
    if NORM == 1:
        mean = tl.sum(value) / K
    apart = tl.where(inside, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart) / K + eps)
    value = _normed(value, factor, added, mean, scale, NORM, SHIFT)
    tl.store(out + row + k, value.to(out.dtype.element_ty), mask=inside)


def can_add_norm(x: Tensor, norm: nn.Module | None) -> bool:
    small = x.is_cuda and x.shape[-1] <= 2 * WIDEST and x.dtype != torch.float64 and not torch.is_grad_enabled()
    return small and norm is not None and type(norm).__name__ in NORMS


def add_norm(x: Tensor, y: Tensor, norm: nn.Module, keep: bool = True) -> tuple[Tensor, Tensor]:
    """Return x + y (computed only if `keep`) and its norm."""
    x, y = x.contiguous(), y.contiguous()
    width = x.shape[-1]
    total, out = torch.empty_like(x) if keep else x, torch.empty_like(x)
    gain, shift, eps, kind, shifted = _norm_arguments(norm, x)
    block = triton.next_power_of_2(width)
    _add_norm[(x.numel() // width,)](
        x, y, total, out, gain, shift, eps, K=width, NORM=kind, SHIFT=shifted, KEEP=keep, BK=block,
        EARLY=supports_early_launch(x.device), num_warps=4 if block <= 2048 else 8, **_launch(x.device),
    )  # fmt: skip
    return total, out


@triton.jit
def _single(
    query, key, value, keys, values, out, first, column, table, scale, qb, qh, kb, kh, vb, vh, C, H, G,
    SPAN: tl.constexpr, TABLE: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    DP: tl.constexpr, VP: tl.constexpr, BC: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    group = head // (H // G)
    d, v, lane = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, BC)
    _follow(EARLY)
    last = tl.load(column)
    low = tl.load(first + row)
    if SPAN >= 0:
        low = tl.maximum(low, last - SPAN)
    q = tl.load(query + row * qb + head * qh + d, mask=d < D, other=0.0).to(tl.float32) * scale
    new_key = tl.load(key + row * kb + group * kh + d, mask=d < D, other=0.0)
    new_value = tl.load(value + row * vb + group * vh + v, mask=v < V, other=0.0)
    if head % (H // G) == 0:
        here = (row.to(tl.int64) * G + group) * C + last
        tl.store(keys + here * D + d, new_key, mask=d < D)
        tl.store(values + here * V + v, new_value, mask=v < V)
    top = tl.sum(q * new_key.to(tl.float32))
    total = 1.0
    mixed = new_value.to(tl.float32)
    for start in range(low, last, BC):
        c = start + lane
        inside = c < last
        if TABLE:
            source = tl.load(table + row * C + c, mask=inside, other=0).to(tl.int64)
        else:
            source = row.to(tl.int64)
        at = (source * G + group) * C + c
        k = tl.load(keys + at[:, None] * D + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
        x = tl.load(values + at[:, None] * V + v[None, :], mask=inside[:, None] & (v < V)[None, :], other=0.0)
        scores = tl.where(inside, tl.sum(k.to(tl.float32) * q[None, :], axis=1), -float("inf"))
        highest = tl.maximum(top, tl.max(scores))
        weights = tl.exp(scores - highest)
        fade = tl.exp(top - highest)
        mixed = mixed * fade + tl.sum(x.to(tl.float32) * weights[:, None], axis=0)
        total = total * fade + tl.sum(weights)
        top = highest
    tl.store(out + (row * H + head) * V + v, (mixed / total).to(out.dtype.element_ty), mask=v < V)


def single_query(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, first: Tensor, column: Tensor,
    span: int | None, table: Tensor | None, scale: float,
) -> Tensor:  # fmt: skip
    """Attention of query [R, H, 1, d] to the filled columns of caches [R, G, C, d] -> [R, H, 1, v]; see
    `masks.StaticCacheMask`.

    The newest key and value [R, G, 1, d] are also written to the caches.
    """
    rows, heads, _, width = query.shape
    _, groups, columns, deep = values.shape
    out = query.new_empty(rows, 1, heads, deep).transpose(1, 2)  # heads side by side, as the next product reads them
    few = rows * heads <= 264  # programs, for a GPU of about 132 multiprocessors
    block = 256 if few else 32 if columns <= 128 else 64  # columns per iteration, as measured on an H200
    _single[(rows, heads)](
        query, key, value, keys, values, out, first, column, table if table is not None else first, scale,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        columns, heads, groups, SPAN=-1 if span is None else span, TABLE=table is not None, D=width, V=deep,
        DP=triton.next_power_of_2(width), VP=triton.next_power_of_2(deep), BC=block,
        EARLY=supports_early_launch(query.device), num_warps=8 if few else 1, **_launch(query.device),
    )  # fmt: skip
    return out


@triton.jit
def _argmax_tokens(scores, ids, said, column, stride, C, N, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    _follow(EARLY)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    for start in range(0, N, BLOCK):
        n = start + lane
        x = tl.load(scores + row * stride + n, mask=n < N, other=-float("inf")).to(tl.float32)
        better = x > top
        top = tl.where(better, x, top)
        place = tl.where(better, n, place)
    likeliest = tl.min(tl.where(top == tl.max(top), place, N)).to(tl.int64)
    tl.store(ids + row, likeliest)
    tl.store(said + row * C + tl.load(column), likeliest)


def argmax_tokens(scores: Tensor, ids: Tensor, said: Tensor, column: Tensor) -> None:
    """Write the most probable token of each row of scores [R, V] to ids [R, 1] and to one column of `said` [R, C]."""
    rows, n = scores.shape
    _argmax_tokens[(rows,)](
        scores, ids, said, column, scores.stride(0), said.shape[1], n, BLOCK=8192,
        EARLY=supports_early_launch(ids.device), num_warps=16, **_launch(ids.device),
    )  # fmt: skip


@triton.jit
def _topk_logsumexp(scores, values, places, sums, stride, N, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    x = tl.load(scores + row * stride + n, mask=n < N, other=-float("inf")).to(tl.float32)
    top = tl.max(x)
    tl.store(sums + row, tl.log(tl.sum(tl.exp(x - top))) + top)
    for i in range(K):
        value, place = tl.max(x, axis=0, return_indices=True)
        tl.store(values + row * K + i, value)
        tl.store(places + row * K + i, place.to(tl.int64))
        x = tl.where(n == place, -float("inf"), x)


def topk_logsumexp(scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """For scores [R, V]: the k largest values of each row, their indices, and the logsumexp of the row."""
    rows, n = scores.shape
    values = torch.empty(rows, k, device=scores.device)
    places = torch.empty(rows, k, device=scores.device, dtype=torch.long)
    sums = torch.empty(rows, device=scores.device)
    block = triton.next_power_of_2(n)
    _topk_logsumexp[(rows,)](scores, values, places, sums, scores.stride(0), n, K=k, BLOCK=block, num_warps=8)
    return values, places, sums
