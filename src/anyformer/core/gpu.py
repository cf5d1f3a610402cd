"""Kernels of our own for one decoding step on a GPU, where the usual ones are made for many tokens at once.

One token asks little of a GPU: what takes time is starting kernels and waiting for the weights. So a product of one row
takes the norm before it and what comes after it along, and attention of one query reads just the columns that are
filled, following a beam's ancestry instead of moving its keys. Written in Triton, which comes with PyTorch for CUDA;
everything here has a plain equivalent elsewhere, and is only taken where it pays.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ACTIVATIONS = {None: 0, "linear": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
COLUMNS = 64  # of the cache, read at a time


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
def _vector_linear(
    x, weight, bias, gain, shift, add, out, N, K, eps,
    NORM: tl.constexpr, SHIFT: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out[n] = act(norm(x) · weight[n] + bias[n]) + add[n]; each program has BN of the n."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    lane = tl.arange(0, BK)
    mean = 0.0
    scale = 1.0
    if NORM == 1:
        total = tl.zeros([BK], tl.float32)
        for start in range(0, K, BK):
            total += tl.load(x + start + lane, mask=start + lane < K, other=0.0).to(tl.float32)
        mean = tl.sum(total) / K
    if NORM > 0:
        square = tl.zeros([BK], tl.float32)
        for start in range(0, K, BK):
            inside = start + lane < K
            apart = tl.load(x + start + lane, mask=inside, other=0.0).to(tl.float32) - mean
            square += tl.where(inside, apart * apart, 0.0)
        scale = tl.rsqrt(tl.sum(square) / K + eps)
    sums = tl.zeros([BN, BK], tl.float32)
    for start in range(0, K, BK):
        k = start + lane
        inside = k < K
        value = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        if NORM > 0:
            factor = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
            if NORM == 3:
                factor += 1.0
            value = (value - mean) * scale * factor
            if SHIFT:
                value += tl.load(shift + k, mask=inside, other=0.0).to(tl.float32)
        tile = tl.load(
            weight + n[:, None].to(tl.int64) * K + k[None, :], mask=(n < N)[:, None] & inside[None, :], other=0.0
        )
        sums += tile.to(tl.float32) * value[None, :]
    y = tl.sum(sums, axis=1)
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    y = _activate(y, ACT)
    if ADD:
        y += tl.load(add + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + n, y.to(out.dtype.element_ty), mask=n < N)


NORMS: dict[str, int] = {"LayerNorm": 1, "RMSNorm": 2, "OffsetRMSNorm": 3}


def can_multiply(x: Tensor, weight: Tensor, norm: nn.Module | None = None, activation: str | None = None) -> bool:
    """One row, without gradients, with what the kernel knows around it."""
    known = (norm is None or type(norm).__name__ in NORMS) and activation in ACTIVATIONS
    flat = x.is_contiguous() and weight.is_contiguous()
    return known and flat and not torch.is_grad_enabled() and x.dtype == weight.dtype != torch.float64


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
    rows = 2 if n <= 1024 else 4 if n <= 8192 else 16
    gain = norm.weight if norm is not None else x
    shift = getattr(norm, "bias", None)
    eps = 0.0
    if norm is not None:
        eps = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps  # type: ignore[assignment]
    _vector_linear[(triton.cdiv(n, rows),)](
        x, weight, bias if bias is not None else x, gain, shift if shift is not None else x,
        add if add is not None else x, out, n, width, eps,
        NORM=NORMS[type(norm).__name__] if norm is not None else 0, SHIFT=shift is not None, BIAS=bias is not None,
        ACT=ACTIVATIONS[activation], ADD=add is not None, BN=rows, BK=min(1024, triton.next_power_of_2(width)),
    )  # fmt: skip
    return out


@triton.jit
def _append(
    key, value, keys, values, column, kb, kh, vb, vh, C, G, D: tl.constexpr, V: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    at = (row * G + head).to(tl.int64) * C + tl.load(column)
    d = tl.arange(0, W)
    tl.store(keys + at * D + d, tl.load(key + row * kb + head * kh + d, mask=d < D), mask=d < D)
    tl.store(values + at * V + d, tl.load(value + row * vb + head * vh + d, mask=d < V), mask=d < V)


def append(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, column: Tensor) -> None:
    """Write key and value [R, G, 1, d] into the caches [R, G, C, d] at a column that lives on the device."""
    rows, groups, columns, width = keys.shape
    _append[(rows, groups)](
        key, value, keys, values, column, key.stride(0), key.stride(1), value.stride(0), value.stride(1), columns,
        groups, D=width, V=values.shape[3], W=triton.next_power_of_2(max(width, values.shape[3])), num_warps=1,
    )  # fmt: skip


@triton.jit
def _single(
    query, keys, values, out, first, column, table, scale, qb, qh, C, H, G,
    SPAN: tl.constexpr, TABLE: tl.constexpr, D: tl.constexpr, V: tl.constexpr,
    DP: tl.constexpr, VP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    group = head // (H // G)
    d, v, lane = tl.arange(0, DP), tl.arange(0, VP), tl.arange(0, BC)
    last = tl.load(column)
    low = tl.load(first + row)
    if SPAN >= 0:
        low = tl.maximum(low, last - SPAN)
    q = tl.load(query + row * qb + head * qh + d, mask=d < D, other=0.0).to(tl.float32) * scale
    top = -float("inf")
    total = 0.0
    mixed = tl.zeros([VP], tl.float32)
    for start in range(low, last + 1, BC):
        c = start + lane
        inside = c <= last
        if TABLE:
            source = tl.load(table + row * C + c, mask=inside, other=0).to(tl.int64)
        else:
            source = row.to(tl.int64)
        at = (source * G + group) * C + c
        k = tl.load(keys + at[:, None] * D + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
        scores = tl.where(inside, tl.sum(k.to(tl.float32) * q[None, :], axis=1), -float("inf"))
        highest = tl.maximum(top, tl.max(scores))
        weights = tl.exp(scores - highest)
        fade = tl.exp(top - highest)
        x = tl.load(values + at[:, None] * V + v[None, :], mask=inside[:, None] & (v < V)[None, :], other=0.0)
        mixed = mixed * fade + tl.sum(x.to(tl.float32) * weights[:, None], axis=0)
        total = total * fade + tl.sum(weights)
        top = highest
    tl.store(out + (row * H + head) * V + v, (mixed / total).to(out.dtype.element_ty), mask=v < V)


def single_query(
    query: Tensor, keys: Tensor, values: Tensor, first: Tensor, column: Tensor, span: int | None, table: Tensor | None,
    scale: float,
) -> Tensor:  # fmt: skip
    """query [R, H, 1, d] over the filled columns of caches [R, G, C, d] -> [R, H, 1, v]. See masks.Filled."""
    rows, heads, _, width = query.shape
    _, groups, columns, deep = values.shape
    out = query.new_empty(rows, heads, 1, deep)
    _single[(rows, heads)](
        query, keys, values, out, first, column, table if table is not None else first, scale, query.stride(0),
        query.stride(1), columns, heads, groups, SPAN=-1 if span is None else span, TABLE=table is not None, D=width,
        V=deep, DP=triton.next_power_of_2(width), VP=triton.next_power_of_2(deep), BC=COLUMNS,
    )  # fmt: skip
    return out


@triton.jit
def _best(scores, values, places, sums, stride, N, K: tl.constexpr, BLOCK: tl.constexpr):
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


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of scores [R, V]: the k largest of each row, where they stand, and the log of the sum of all exponentials."""
    rows, n = scores.shape
    values = torch.empty(rows, k, device=scores.device)
    places = torch.empty(rows, k, device=scores.device, dtype=torch.long)
    sums = torch.empty(rows, device=scores.device)
    block = triton.next_power_of_2(n)
    _best[(rows,)](scores, values, places, sums, scores.stride(0), n, K=k, BLOCK=block, num_warps=16)
    return values, places, sums
