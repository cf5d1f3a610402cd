"""Triton kernels for training in half precision on a GPU: the operations between the products of a compiled step, and
the loss over large vocabularies, compiled or not.

The products themselves run near the GPU's limit. Around them, a step of GPT-2 spends a third of its time on memory
traffic, more than necessary: a bias's gradient reads again what the activation's gradient has just written, the
gradient of a norm is written in one precision and copied to another, and a loss over 50,000 tokens reads the logits
slowly. Each kernel here reads its inputs once and writes its results once.

Triton comes with PyTorch for CUDA. Every kernel has an equivalent in plain PyTorch.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton
from triton.runtime.jit import JITFunction

from anyformer.fast.device import HALVES, MOST_PARTS
from anyformer.fast.triton_decode import NORMS

IGNORED = tl.constexpr(-100)  # a label that is ignored
ROWS = 16  # rows per program when summing columns
PROGRAMS = 1056  # programs that share the rows of a norm's gradient: eight for each multiprocessor of an H200
WIDEST_NORM = 4096  # the largest number of features of a token that a program holds


def pays(x: Tensor) -> bool:
    """Whether the kernels pay: in a compiled training step, in half precision or under autocast."""
    half = x.dtype in HALVES or (x.dtype == torch.float32 and torch.is_autocast_enabled("cuda"))
    return torch.compiler.is_compiling() and x.is_cuda and torch.is_grad_enabled() and half


def _launcher(kernel: Any) -> Any:
    """The kernel, wrapped for compiled graphs; unwrapped in Triton's interpreter, which tests use."""
    return wrap_triton(kernel) if isinstance(kernel, JITFunction) else kernel


# Cross entropy.


@triton.jit
def _entropy(logits, labels, losses, norms, stride, V, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    wanted = tl.load(labels + row)
    top = -float("inf")
    total = 0.0
    everything = 0.0
    if wanted != IGNORED:
        for start in range(0, V, BLOCK):
            n = start + lane
            x = tl.load(logits + row * stride + n, mask=n < V, other=-float("inf")).to(tl.float32)
            highest = tl.maximum(top, tl.max(x))
            base = tl.where(highest == -float("inf"), 0.0, highest)
            total = total * tl.exp(top - base) + tl.sum(tl.exp(x - base))
            top = highest
            if SMOOTHING > 0:
                everything += tl.sum(tl.where(n < V, x, 0.0))
        norm = tl.log(total) + top
        known = (wanted >= 0) & (wanted < V)  # else the loss is NaN
        said = tl.load(logits + row * stride + wanted, mask=known, other=float("nan")).to(tl.float32)
        loss = norm - (1.0 - SMOOTHING) * said
        if SMOOTHING > 0:
            loss -= SMOOTHING * everything / V
        tl.store(losses + row, loss)
        tl.store(norms + row, norm)
    else:
        tl.store(losses + row, 0.0)
        tl.store(norms + row, 0.0)


@triton.jit
def _entropy_back(logits, labels, norms, above, gradient, stride, V, SMOOTHING: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    n = start + tl.arange(0, BLOCK)
    wanted = tl.load(labels + row)
    if wanted == IGNORED:
        tl.store(gradient + row * V + n, tl.zeros([BLOCK], gradient.dtype.element_ty), mask=n < V)
    else:
        scale = tl.load(above)
        x = tl.load(logits + row * stride + n, mask=n < V, other=0.0).to(tl.float32)
        found = tl.exp2(x * 1.4426950408889634 - tl.load(norms + row) * 1.4426950408889634) * scale
        if SMOOTHING > 0:
            found -= SMOOTHING / V * scale
        if (wanted >= start) & (wanted < start + BLOCK):  # whether the label is among these tokens
            found -= tl.where(n == wanted, (1.0 - SMOOTHING) * scale, 0.0)
        tl.store(gradient + row * V + n, found.to(gradient.dtype.element_ty), mask=n < V)


@triton_op("anyformer::entropy", mutates_args={})
def entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """For each row of logits [N, tokens]: its loss (0 if the label is -100) and its logsumexp."""
    rows = labels.shape[0]  # not len(), which would specialize a compiled graph to this number
    losses, norms = (torch.empty(rows, device=logits.device, dtype=torch.float32) for _ in range(2))
    _launcher(_entropy)[(rows,)](
        logits, labels, losses, norms, logits.stride(0), logits.shape[1], SMOOTHING=smoothing, BLOCK=2048, num_warps=2
    )
    return losses, norms


@triton_op("anyformer::entropy_back", mutates_args={})
def entropy_back(logits: Tensor, labels: Tensor, norms: Tensor, above: Tensor, smoothing: float) -> Tensor:
    """The gradient of the sum of all losses, times `above`."""
    rows, n = logits.shape
    gradient = torch.empty(rows, n, device=logits.device, dtype=logits.dtype)
    _launcher(_entropy_back)[(rows, triton.cdiv(n, 2048))](
        logits, labels, norms, above, gradient, logits.stride(0), n, SMOOTHING=smoothing, BLOCK=2048, num_warps=4
    )
    return gradient


class _SummedEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        losses, norms = entropy(logits, labels, smoothing)
        ctx.save_for_backward(logits, labels, norms)
        ctx.smoothing = smoothing
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor, None, None]:
        logits, labels, norms = ctx.saved_tensors
        return entropy_back(logits, labels, norms, above[0].float(), ctx.smoothing), None, None


def summed_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """As heads.entropy.summed_cross_entropy, for logits in half precision with contiguous rows."""
    return cast("Tensor", _SummedEntropy.apply(logits, labels, smoothing))


# Products whose bias gradient uses sums that are already computed.


def _half(x: Tensor) -> torch.dtype:
    """The precision in which products are computed."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def _factors(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and weight in that precision."""
    dtype = _half(x)
    return x.to(dtype).reshape(-1, x.shape[-1]), weight.to(dtype)


def _product(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    ctx.dtype = bias.dtype
    return torch.addmm(bias.to(x.dtype), x, weight.t())


def _learned(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor, sums: Tensor) -> tuple[Any, ...]:
    """Gradients of x, weight and bias from a product's gradient and its partial sums over rows."""
    below = gradient @ weight if ctx.needs_input_grad[0] else None
    learned = gradient.t() @ x if ctx.needs_input_grad[1] else None
    return below, learned, sums.sum(dim=0).to(ctx.dtype)


# A product and GELU after it.


@triton.jit
def _below(x):
    """The normal cumulative distribution function at x, within 1e-7 (Abramowitz and Stegun 7.1.26), and its density."""
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    bell = tl.exp(-0.5 * x * x)
    tail = 0.5 * bell * t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )  # fmt: skip
    return tl.where(x >= 0, 1.0 - tail, tail), bell * 0.3989422804014327


@triton.jit
def _gelu_forward(given, bent, N, TANH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(given + at, mask=at < N, other=0.0).to(tl.float32)
    if TANH:
        y = x * tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        share, _ = _below(x)
        y = x * share
    tl.store(bent + at, y.to(bent.dtype.element_ty), mask=at < N)


@triton.jit
def _gelu_backward(given, above, gradient, sums, R, N, TANH: tl.constexpr, EACH: tl.constexpr, BN: tl.constexpr):
    """The gradient of GELU's input, BN columns of some rows for each program, and its sums over these rows. Iterating
    over rows keeps each column in one thread, so that threads exchange nothing."""
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = n < N
    total = tl.zeros([BN], tl.float32)
    first = tl.program_id(0) * EACH
    for r in range(first, tl.minimum(first + EACH, R)):
        at = tl.cast(r, tl.int64) * N + n
        x = tl.load(given + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(above + at, mask=inside, other=0.0).to(tl.float32)
        if TANH:
            share = tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
            slope = share + x * share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        else:
            share, density = _below(x)
            slope = share + x * density
        g *= slope
        total += g
        tl.store(gradient + at, g.to(gradient.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * N + n, total, mask=inside)


@triton_op("anyformer::gelu_forward", mutates_args={})
def gelu_forward(given: Tensor, tanh: bool) -> Tensor:
    """GELU of a contiguous tensor, exact or with tanh."""
    bent = torch.empty_like(given)
    n = given.numel()
    _launcher(_gelu_forward)[(triton.cdiv(n, 1024),)](given, bent, n, TANH=tanh, BLOCK=1024, num_warps=4)
    return bent


@triton_op("anyformer::gelu_backward", mutates_args={})
def gelu_backward(given: Tensor, above: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """The gradient of GELU's input [rows, n], and partial sums of it over rows [some, n]."""
    rows, n = given.shape
    block, some = min(1024, triton.next_power_of_2(n)), triton.cdiv(rows, ROWS)
    gradient = torch.empty_like(given)
    sums = torch.empty(some, n, device=given.device, dtype=torch.float32)
    _launcher(_gelu_backward)[(some, triton.cdiv(n, block))](
        given, above, gradient, sums, rows, n, TANH=tanh, EACH=ROWS, BN=block, num_warps=max(1, block // 256)
    )
    return gradient, sums


class _LinearGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        given = _product(ctx, x, weight, bias)
        ctx.save_for_backward(x, weight, given)
        ctx.tanh = tanh
        return gelu_forward(given, tanh)

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Any, ...]:
        x, weight, given = ctx.saved_tensors
        return *_learned(ctx, x, weight, *gelu_backward(given, above[0].contiguous(), ctx.tanh)), None


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """GELU(weight x + bias), exact or with tanh. The gradient of the bias uses partial sums and does not read the
    input's gradient again."""
    y = cast("Tensor", _LinearGELU.apply(*_factors(x, weight), bias, tanh))
    return y.unflatten(0, x.shape[:-1])


# A product whose result is used in parts.


@triton.jit
def _join(
    part0, part1, part2, joined, sums, R, N, stride0, stride1, stride2, W0: tl.constexpr, W1: tl.constexpr,
    W2: tl.constexpr, EACH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Copy one part, given by the last program index, to its columns of the result: some rows and columns, and the
    columns' sums."""
    part, stride, width, start = part0, stride0, W0, 0
    if tl.program_id(2) == 1:
        part, stride, width, start = part1, stride1, W1, W0
    if tl.program_id(2) == 2:
        part, stride, width, start = part2, stride2, W2, W0 + W1
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    inside = w < width
    total = tl.zeros([BW], tl.float32)
    first = tl.program_id(0) * EACH
    for r in range(first, tl.minimum(first + EACH, R)):
        x = tl.load(part + tl.cast(r, tl.int64) * stride + w, mask=inside, other=0.0)
        tl.store(joined + tl.cast(r, tl.int64) * N + start + w, x, mask=inside)
        total += x.to(tl.float32)
    tl.store(sums + tl.program_id(0) * N + start + w, total, mask=inside)


@triton_op("anyformer::join", mutates_args={})
def join(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Join one to three parts [rows, width] side by side, and return partial sums over rows."""
    rows, widths = parts[0].shape[0], [part.shape[1] for part in parts]
    some, widest = triton.cdiv(rows, ROWS), max(widths)
    joined = torch.empty(rows, sum(widths), device=parts[0].device, dtype=parts[0].dtype)
    sums = torch.empty(some, sum(widths), device=parts[0].device, dtype=torch.float32)
    block = min(1024, triton.next_power_of_2(widest))
    missing = MOST_PARTS - len(parts)
    all_parts, (first, second, third) = [*parts, *parts[-1:] * missing], [*widths, *[0] * missing]
    _launcher(_join)[(some, triton.cdiv(widest, block), len(parts))](
        *all_parts, joined, sums, rows, sum(widths), *[part.stride(0) for part in all_parts], W0=first, W1=second,
        W2=third, EACH=ROWS, BW=block, num_warps=max(1, block // 256),
    )  # fmt: skip
    return joined, sums


class _LinearParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return _product(ctx, x, weight, bias).split_with_sizes(widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Any, ...]:
        parts = [one if one.stride(1) == 1 else one.contiguous() for one in above]
        return *_learned(ctx, *ctx.saved_tensors, *join(parts)), None


def linear_parts(x: Tensor, weight: Tensor, bias: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
    """weight x + bias, split into parts. Their gradients are joined and summed for the bias in one kernel."""
    parts = _LinearParts.apply(*_factors(x, weight), bias, widths)
    return tuple(part.unflatten(0, x.shape[:-1]) for part in parts)


# A sum and its norm.


@triton.jit
def _sum_norm(
    x, y, gain, shift, total, out, means, scales, R, EPS: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr,
    SHIFT: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    k = tl.arange(0, BK)
    inside = (r < R)[:, None] & (k < K)[None, :]
    at = r.to(tl.int64)[:, None] * K + k[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    value = value.to(total.dtype.element_ty)
    tl.store(total + at, value, mask=inside)
    value = value.to(tl.float32)
    if NORM == 1:
        mean = tl.sum(value, axis=1) / K
        tl.store(means + r, mean, mask=r < R)
        value = tl.where((k < K)[None, :], value - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / K + EPS)
    tl.store(scales + r, scale, mask=r < R)
    value *= scale[:, None] * tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
    if SHIFT:
        value += tl.load(shift + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_norm_back(
    total, means, scales, gain, above, around, of_x, of_y, sums, R, K: tl.constexpr, NORM: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Gradients of sum and norm, where `above` is the gradient of the norm and `around` that of the sum. Each program
    processes a strided subset of rows and sums the gradients of weight and bias over them."""
    k = tl.arange(0, BK)
    inside = k < K
    weight = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    gains = tl.zeros([BK], tl.float32)
    shifts = tl.zeros([BK], tl.float32)
    for r in range(tl.program_id(0), R, tl.num_programs(0)):
        at = tl.cast(r, tl.int64) * K + k
        value = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(above + at, mask=inside, other=0.0).to(tl.float32)
        past = tl.load(around + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + r)
        if NORM == 1:
            value -= tl.load(means + r)
        value = tl.where(inside, value * scale, 0.0)
        gains += g * value
        shifts += g
        g *= weight
        along = tl.sum(g * value) / K
        if NORM == 1:
            g -= tl.sum(g) / K
        g = (g - value * along) * scale + past
        tl.store(of_x + at, g.to(of_x.dtype.element_ty), mask=inside)
        tl.store(of_y + at, g.to(of_y.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * 2 * K + k, gains, mask=inside)
    tl.store(sums + tl.program_id(0) * 2 * K + K + k, shifts, mask=inside)


@triton_op("anyformer::sum_norm", mutates_args={})
def sum_norm_op(
    x: Tensor, y: Tensor, gain: Tensor, shift: Tensor | None, eps: float, kind: int, out: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x + y, its norm, and the statistics of the norm: means and inverse standard deviations."""
    rows, width = x.shape
    total = torch.empty(rows, width, device=x.device, dtype=torch.promote_types(x.dtype, y.dtype))
    normed = torch.empty(rows, width, device=x.device, dtype=out)
    means, scales = (torch.empty(rows, device=x.device, dtype=torch.float32) for _ in range(2))
    block = triton.next_power_of_2(width)
    each = max(1, 2048 // block)
    _launcher(_sum_norm)[(triton.cdiv(rows, each),)](
        x, y, gain, shift if shift is not None else gain, total, normed, means, scales, rows, EPS=eps, K=width,
        NORM=kind, SHIFT=shift is not None, BR=each, BK=block, num_warps=max(4, block // 512),
    )  # fmt: skip
    return total, normed, means, scales


@triton_op("anyformer::sum_norm_back", mutates_args={})
def sum_norm_back(
    total: Tensor, means: Tensor, scales: Tensor, gain: Tensor, above: Tensor, around: Tensor, kind: int,
    of_x: torch.dtype, of_y: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of both summands, in the precision of each, and partial sums [some, 2, width] for weight and
    bias."""
    rows, width = total.shape
    first = torch.empty(rows, width, device=total.device, dtype=of_x)
    second = torch.empty(rows, width, device=total.device, dtype=of_y)
    sums = torch.empty(PROGRAMS, 2, width, device=total.device, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    _launcher(_sum_norm_back)[(PROGRAMS,)](
        total, means, scales, gain, above, around, first, second, sums, rows, K=width, NORM=kind, BK=block,
        num_warps=max(1, block // 512),
    )  # fmt: skip
    return first, second, sums


class _SumNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, gain: Tensor, shift: Tensor | None, eps: float, kind: int, out: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        total, normed, means, scales = sum_norm_op(x, y, gain, shift, eps, kind, out)
        ctx.save_for_backward(total, means, scales, gain)
        ctx.kind, ctx.dtypes, ctx.shifts = kind, (x.dtype, y.dtype), shift is not None
        return total, normed

    @staticmethod
    def backward(ctx: Any, *above: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None, None]:
        total, means, scales, gain = ctx.saved_tensors
        around, of_norm = (one.contiguous() for one in above)
        of_x, of_y, sums = sum_norm_back(total, means, scales, gain, of_norm, around, ctx.kind, *ctx.dtypes)
        learned = sums.sum(dim=0)
        shift = learned[1].to(gain.dtype) if ctx.shifts else None
        return of_x, of_y, learned[0].to(gain.dtype), shift, None, None, None


def can_sum_norm(x: Tensor, norm: nn.Module) -> bool:
    known = NORMS.get(type(norm).__name__) in (1, 2) and getattr(norm, "eps", None) is not None
    return pays(x) and known and x.shape[-1] <= WIDEST_NORM


def sum_norm(x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """x + y [..., d] and its norm, in the precision in which products are computed."""
    width = x.shape[-1]
    kind, eps = NORMS[type(norm).__name__], float(cast("float", norm.eps))
    gain, shift = cast("Tensor", norm.weight), cast("Tensor | None", getattr(norm, "bias", None))
    x, y = torch.broadcast_tensors(x, y)
    flat = [one.reshape(-1, width).contiguous() for one in (x, y)]
    total, normed = _SumNorm.apply(*flat, gain, shift, eps, kind, _half(x))
    return total.view(x.shape), normed.view(x.shape)
