"""Attention kernels for cases in which PyTorch's fused kernel is slow. The first that supports a call and pays is
used."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyformer.core.attend import (
    CHOOSERS,
    KERNELS,
    AttentionCall,
    Kernel,
    attend,
    needs_mask,
    reference,
    repadded,
    repeat_kv,
    sdpa,
    starts_together,
)
from anyformer.core.masks import NO_MASK, Causal, Dense, Dilated, Mask, Padding, StaticCacheMask, Window
from anyformer.layers.raster import BlockLocal2D

BLOCK = 256  # queries per step of the blocked kernel
TILE = 128  # queries or keys that cuDNN handles at a time
NOT_CUDNN = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def _fused(call: AttentionCall) -> Tensor:
    """PyTorch's fused attention, on any device."""
    return _fused_on_gpu(call) if call.query.is_cuda else sdpa(call)


def _fused_on_gpu(call: AttentionCall) -> Tensor:
    """PyTorch's fused attention, without what its kernels for a GPU get wrong: queries that see nothing, and cuDNN's
    gradients."""
    sees = None
    if needs_mask(call):
        allowed, sees = _open_empty_rows(call.allowed())
        call = replace(call, mask=Dense(allowed), offset=0)
    with nullcontext() if _fills_tiles(call) else sdpa_kernel(_backends_without_cudnn()):
        out = sdpa(call)
    return out if sees is None else out.masked_fill(~sees, 0.0)


def _open_empty_rows(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Let queries that see nothing see everything, and return which queries see anything. The CPU kernel gives zeros
    for such queries; CUDA kernels may give NaN, so there the result and the gradient are discarded."""
    sees = allowed.any(dim=-1, keepdim=True)
    return allowed | ~sees, sees


def _fills_tiles(call: AttentionCall) -> bool:
    """Whether cuDNN may be used. If lengths do not fill its tiles and scores are far below zero, its gradients may be
    NaN (PyTorch 2.11 to 2.13). PyTorch's issue 196678 reports it for half a tile and a mask, but it also occurs without
    a mask in a ViT with 64 patches, so every partial tile counts."""
    return not torch.is_grad_enabled() or (call.query.shape[2] % TILE == 0 and call.key.shape[2] % TILE == 0)


def _backends_without_cudnn() -> list[SDPBackend]:
    """The backends enabled in PyTorch, without cuDNN. The switches cannot be read while PyTorch compiles."""
    if torch.compiler.is_compiling():
        return list(NOT_CUDNN)
    flags = torch.backends.cuda
    may = (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.math_sdp_enabled())
    return [one for one, on in zip(NOT_CUDNN, may, strict=True) if on] or [SDPBackend.MATH]


def _batched(call: AttentionCall) -> Tensor:
    """The reference kernel without a mask that forbids nothing, for few queries of many heads, which the fused CPU
    kernel processes one by one."""
    last = call.query.shape[2] == 1 and call.offset + 1 >= call.key.shape[2]
    if last and all(isinstance(part, Causal) for part in call.mask.parts):
        call = replace(call, mask=NO_MASK)
    return reference(call)


def _few_queries(call: AttentionCall) -> bool:
    batch, heads, queries, _ = call.query.shape
    few = queries <= 4 and call.key.shape[2] <= BLOCK and batch * heads >= 64
    return few and call.key.is_cpu and call.key.shape[1] == heads and not torch.is_grad_enabled()


def _bounded(call: AttentionCall) -> bool:
    """Whether a block of queries in the middle sees only a part of the keys, so that blocks pay."""
    n_keys = call.key.shape[2]
    middle = n_keys // 2
    low, high = call.mask.key_range(middle, middle + 1, n_keys)
    return n_keys >= 4 * BLOCK and high - low <= n_keys // 4


def _blocked(call: AttentionCall) -> Tensor:
    """Attend a block of queries at a time to the keys that it can reach: time and memory are linear in the length for
    windows."""
    n_query, n_key = call.query.shape[2], call.key.shape[2]
    outputs = []
    for first in range(0, n_query, BLOCK):
        last = min(first + BLOCK, n_query)
        low, high = call.mask.key_range(call.offset + first, call.offset + last, n_key)
        if low == high:
            outputs.append(call.query.new_zeros(*call.query.shape[:2], last - first, call.value.shape[-1]))
            continue
        q = torch.arange(call.offset + first, call.offset + last, device=call.query.device)[:, None]
        allowed = call.mask.allowed(q, torch.arange(low, high, device=call.query.device)[None, :])
        part = replace(
            call,
            query=call.query[:, :, first:last],
            key=call.key[:, :, low:high],
            value=call.value[:, :, low:high],
            mask=Dense(allowed.expand(allowed.shape[0], 1, last - first, high - low)),
            bias=None if call.bias is None else call.bias[..., first:last, low:high],
            offset=0,
        )
        outputs.append(_fused(part))
    return torch.cat(outputs, dim=2)


def _banded(call: AttentionCall) -> Tensor:
    """The blocks of `_blocked` as one batch: the keys of each block are copied, and one call attends to all of them.

    A GPU computes a block faster than it launches a kernel. The gradient of a slice is a tensor of the full length, so
    that one slice per block would make the backward pass quadratic; this function takes at most three slices.
    """
    left, right = _span(call)
    length = call.query.shape[2]
    n = -(-length // BLOCK)
    spare, width = n * BLOCK - length, left + BLOCK + right

    def around(x: Tensor) -> Tensor:  # [B, G, T, d] -> [B, n, G, left + BLOCK + right, d]
        return F.pad(x, (0, 0, left, spare + right)).unfold(2, width, BLOCK).permute(0, 2, 1, 4, 3)

    query = F.pad(call.query, (0, 0, 0, spare)).unflatten(2, (n, BLOCK)).transpose(1, 2)
    key, value = around(call.key), around(call.value)
    outputs = []
    for first, last, allowed in _bands(call, n, left, right):
        own = [x[:, first:last].flatten(0, 1) for x in (query, key, value)]
        part = replace(call, query=own[0], key=own[1], value=own[2], mask=Dense(allowed))
        outputs.append(_fused(part).unflatten(0, (-1, last - first)))
    return torch.cat(outputs, dim=1).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _bands(call: AttentionCall, n: int, left: int, right: int) -> list[tuple[int, int, Tensor]]:
    """Runs of blocks with the mask of each [1 or B·blocks, 1, BLOCK, width]. Inside a row without padding all blocks
    share one mask. Blocks whose keys may lie outside the row or be padding have their own."""
    batch, _, length, _ = call.query.shape
    device, width = call.query.device, left + BLOCK + right
    ahead = torch.arange(width, device=device) - left - torch.arange(BLOCK, device=device)[:, None]
    band = ((ahead >= -left) & (ahead <= right))[None, None]
    paddings = [part.real for part in call.mask.parts if isinstance(part, Padding)]
    real = torch.ones(batch, length, dtype=torch.bool, device=device)
    for padding in paddings:
        real = real & padding
    near = F.pad(real, (left, n * BLOCK - length + right)).unfold(1, width, BLOCK)  # [B, n, width]

    def own(first: int, last: int) -> tuple[int, int, Tensor]:
        return first, last, band & near[:, first:last].flatten(0, 1)[:, None, None]

    inner, outer = -(-left // BLOCK), (length - right) // BLOCK
    if paddings or inner >= outer:
        return [own(0, n)]
    runs = [own(0, inner)] if inner else []
    runs.append((inner, outer, band.expand(1, 1, BLOCK, width)))
    return [*runs, own(outer, n)] if outer < n else runs


def _span(call: AttentionCall) -> tuple[int, int]:
    """How far a window extends to the left and to the right of a query."""
    windows = [part for part in call.mask.parts if isinstance(part, Window)]
    causal = any(isinstance(part, Causal) for part in call.mask.parts)
    length = call.key.shape[2]
    left, right = min(part.left for part in windows), min(part.right for part in windows)
    return min(left, length), 0 if causal else min(right, length)


def _can_band(call: AttentionCall) -> bool:
    parts = call.mask.parts
    known = all(isinstance(part, (Window, Causal, Padding)) for part in parts)
    return known and _is_whole(call) and any(isinstance(part, Window) for part in parts) and _plain(call)


def _tiled(call: AttentionCall) -> Tensor:
    """Attend to the blocks of an image, each with its memory, as additional heads of one call. All images have the same
    mask, whose table is as large as a block times its memory."""
    blocks = next(part for part in call.mask.parts if isinstance(part, BlockLocal2D))
    around, n_heads, length = blocks.surroundings, call.query.shape[1], call.query.shape[2]
    assert around is not None
    q, k = around.indices(length, call.query.device)
    allowed = (k >= 0)[:, None, :].expand(-1, q.shape[1], -1)
    for part in call.mask.parts:
        if not isinstance(part, Padding):
            allowed = allowed & part.allowed(q[:, :, None], k[:, None, :])[0, 0]
    allowed = allowed.repeat_interleave(n_heads, dim=0)[None]
    for part in call.mask.parts:
        if isinstance(part, Padding):
            real = part.real[:, k.clamp(min=0)].repeat_interleave(n_heads, dim=1)  # [B, blocks · H, width]
            allowed = allowed & real[:, :, None, :]
    key, value = (around.neighborhoods(repeat_kv(x, n_heads)) for x in (call.key, call.value))
    tiles = replace(call, query=around.tiles(call.query), key=key, value=value, mask=Dense(allowed))
    return around.untile(_fused(tiles), n_heads, length)


def _can_tile(call: AttentionCall) -> bool:
    parts = call.mask.parts
    blocks = [part for part in parts if isinstance(part, BlockLocal2D)]
    known = all(isinstance(part, (BlockLocal2D, Causal, Padding)) for part in parts) and Causal() in parts
    return known and _is_whole(call) and len(blocks) == 1 and blocks[0].surroundings is not None and _plain(call)


def _regrouped(call: AttentionCall) -> Tensor:
    """Dilation as a window: tokens with the same remainder modulo the step attend only to each other and are made
    neighbors."""
    dilated = next(part for part in call.mask.parts if isinstance(part, Dilated))
    step, length = dilated.step, call.query.shape[2]
    batch, spare = call.query.shape[0], -length % dilated.step

    def group(x: Tensor) -> Tensor:  # [B, H, T, d] -> [B·step, H, T / step, d]
        x = F.pad(x, (0, 0, 0, spare)).unflatten(2, (-1, step))
        return x.permute(0, 3, 1, 2, 4).flatten(0, 1)

    mask: Mask = Window(dilated.steps, dilated.steps)
    for part in call.mask.parts:
        if isinstance(part, Padding):
            real = F.pad(part.real.expand(batch, -1), (0, spare)).unflatten(1, (-1, step))
            mask = mask & Padding(real.transpose(1, 2).flatten(0, 1))
        elif isinstance(part, Causal):
            mask = mask & part
    if spare and len(call.mask.parts) == 1:  # no part of the mask hides the added padding
        real = length > torch.arange(length + spare, device=call.query.device).view(-1, step).T
        mask = mask & Padding(real.repeat(batch, 1))
    query, key, value = group(call.query), group(call.key), group(call.value)
    out = attend(query, key, value, mask, scale=call.scale, dropout=call.dropout)
    out = out.unflatten(0, (batch, step)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    return out[:, :, :length]


def _can_regroup(call: AttentionCall) -> bool:
    parts = call.mask.parts
    known = all(isinstance(part, (Dilated, Causal, Padding)) for part in parts)
    return known and _is_whole(call) and sum(isinstance(part, Dilated) for part in parts) == 1 and _plain(call)


def _is_whole(call: AttentionCall) -> bool:
    """Whether queries and keys are the same tokens."""
    return starts_together(call) and call.key.shape[2] > 0


def _plain(call: AttentionCall) -> bool:
    return call.bias is None and call.score is None


def _long(call: AttentionCall) -> bool:
    return call.key.shape[2] >= 2 * BLOCK


def _per_row(call: AttentionCall) -> Tensor:
    """Attend to packed rows one by one: no work at the padding and no mask. Best if a call is cheap (CPU)."""
    packed = call.mask.packed
    assert packed is not None
    sizes = (packed.query.sizes, packed.key.sizes)
    if all(len(set(size)) == 1 and size[0] > 0 for size in sizes):  # rows of equal length are one batch
        batch = packed.query.batch
        query, key, value = (
            x.view(x.shape[1], batch, -1, x.shape[3]).transpose(0, 1) for x in (call.query, call.key, call.value)
        )
        out = attend(query, key, value, call.mask.without_packing, scale=call.scale, dropout=call.dropout)
        return out.transpose(0, 1).reshape(1, out.shape[1], -1, out.shape[3])
    rows = zip(
        call.query.split(sizes[0], dim=2), call.key.split(sizes[1], 2), call.value.split(sizes[1], 2), strict=True
    )
    outputs = [
        attend(query, key, value, call.mask.without_packing, scale=call.scale, dropout=call.dropout)
        if query.shape[2] and key.shape[2]
        else query.new_zeros(*query.shape[:3], value.shape[3])
        for query, key, value in rows
    ]
    return torch.cat(outputs, dim=2)


def _repad(call: AttentionCall) -> Tensor:
    """Pad packed rows for attention only: the projections around it still skip the padding."""
    packed = call.mask.packed
    assert packed is not None
    out = _fused(repadded(call, packed))  # [B, H, T, v]
    return packed.query.right_padded.pack(out.transpose(1, 2)).transpose(0, 1).unsqueeze(0)


def _varlen(call: AttentionCall) -> Tensor:
    """Packed rows in one launch of the flash kernel (CUDA, half precision)."""
    from torch.nn.attention.varlen import varlen_attn

    packed = call.mask.packed
    assert packed is not None
    n_heads = call.query.shape[1]
    query, key, value = (
        x[0].transpose(0, 1) for x in (call.query, repeat_kv(call.key, n_heads), repeat_kv(call.value, n_heads))
    )
    lengths = (packed.query.starts, packed.key.starts, max(packed.query.sizes), max(packed.key.sizes))
    window = (-1, 0) if call.mask.without_packing.parts else (-1, -1)  # (-1, 0): causal
    out = varlen_attn(query, key, value, *lengths, scale=call.scale, window_size=window)
    assert isinstance(out, Tensor)
    return out.transpose(0, 1).unsqueeze(0)


def _can_varlen(call: AttentionCall) -> bool:
    half = call.query.is_cuda and call.query.dtype in (torch.float16, torch.bfloat16)
    plain = call.mask.packed is not None and _plain(call) and call.dropout == 0
    width = call.query.shape[-1]
    fits = width == call.value.shape[-1] and width % 8 == 0 and width <= 256
    return _HAS_VARLEN and half and plain and fits and _flash_causal(call)


def _flash_causal(call: AttentionCall) -> bool:
    """Whether flash attention gives the same result: it aligns causal rows at their ends, this library at their
    beginnings, which is the same for rows of equal length."""
    packed = call.mask.packed
    same = packed is not None and packed.query.sizes == packed.key.sizes
    return not call.mask.without_packing.parts or (
        same and all(isinstance(part, Causal) for part in call.mask.without_packing.parts)
    )


def _has_varlen() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in inspect.signature(varlen_attn).parameters


_HAS_VARLEN = torch.cuda.is_available() and _has_varlen()


def _single(call: AttentionCall) -> Tensor:
    """Attention of one query per row to a static cache, of which only the filled columns are read (CUDA; see
    static_cache.py)."""
    from anyformer.fast.triton_decode import single_query

    mask = call.mask
    assert isinstance(mask, StaticCacheMask) and mask.fresh is not None
    return single_query(
        call.query, *mask.fresh, call.key, call.value, mask.first, mask.column, mask.span, mask.table, call.scale
    )


def _can_single(call: AttentionCall) -> bool:
    return isinstance(call.mask, StaticCacheMask) and call.mask.fresh is not None


def _can_unpack(call: AttentionCall) -> bool:
    return call.mask.packed is not None and _plain(call)


def _can_fuse(call: AttentionCall) -> bool:
    return call.mask.packed is None and call.score is None


def _on_cuda(call: AttentionCall) -> bool:
    return call.query.is_cuda and _can_fuse(call)


def _long_rows_on_cpu(call: AttentionCall) -> bool:
    """Whether rows are long enough for one call per row: below about 16 tokens a row, it costs more than padding
    does."""
    rows = call.mask.packed.query.batch if call.mask.packed is not None else 1
    return not call.query.is_cuda and call.query.shape[2] >= 16 * rows


FAST = (
    Kernel("single", _single, _can_single),
    Kernel("varlen", _varlen, _can_varlen),
    Kernel("each", _per_row, _can_unpack, _long_rows_on_cpu),
    Kernel("repad", _repad, _can_unpack),
    Kernel("regrouped", _regrouped, _can_regroup, _long),
    Kernel("tiled", _tiled, _can_tile),
    Kernel("banded", _banded, _can_band, _bounded),
    Kernel("blocked", _blocked, _can_fuse, _bounded),
    Kernel("batched", _batched, _can_fuse, _few_queries),
    Kernel("sdpa on a GPU", _fused_on_gpu, _on_cuda),
)
KERNELS |= {**{kernel.name: kernel for kernel in FAST}, **{name: KERNELS.pop(name) for name in list(KERNELS)}}


def choose(call: AttentionCall) -> Kernel | None:
    """Return a kernel, or None for those of the core. Short keys on a CPU take one test, so that decoding is not
    slowed."""
    if torch.compiler.is_compiling() and not call.key.is_cuda:
        return None  # torch.compile would add a guard on the length
    if call.key.shape[2] < 2 * BLOCK and call.key.is_cpu and call.mask.packed is None:
        return KERNELS["batched"] if call.score is None and _few_queries(call) else None
    return next((kernel for kernel in FAST if kernel.can(call) and kernel.pays(call)), None)


CHOOSERS.append(choose)
