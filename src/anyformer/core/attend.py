"""The only softmax(QKᵀ)V in the library: one contract, a reference that spells it out, and fast kernels behind it.

    attend(query, key, value, mask)      query [B, H, Q, d], key [B, G, K, d], value [B, G, K, v] -> [B, H, Q, v]

G divides H: each group of H/G query heads shares one key/value head. `mask` says who may attend (True) and a query
that may attend to nothing gives zeros. `bias` [.., H, Q, K] is added to the scores. `offset` is the index of the first
query among the keys (cached decoding). A kernel is a `Kernel` in KERNELS; the first that can and pays is taken, and the
conformance suite runs every one of them against the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyformer.core.masks import (
    NO_MASK,
    BlockLocal2D,
    Causal,
    Dense,
    Dilated,
    Mask,
    PackedMask,
    Padding,
    StaticCacheMask,
    Window,
)
from anyformer.tokens import Packing

BLOCK = 256  # queries a step in the blocked kernel
TILE = 128  # queries or keys that cuDNN handles at a time
NOT_CUDNN = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


@dataclass(frozen=True)
class AttentionCall:
    """One question put to a kernel."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    scale: float
    bias: Tensor | None = None
    dropout: float = 0.0
    offset: int = 0
    score: nn.Module | None = None

    @property
    def packed(self) -> PackedMask | None:
        return next((part for part in self.mask.parts if isinstance(part, PackedMask)), None)

    @property
    def mask_without_packing(self) -> Mask:
        """The mask without its packing."""
        result: Mask = NO_MASK
        for part in self.mask.parts:
            result = result if isinstance(part, PackedMask) else result & part
        return result

    def allowed(self) -> Tensor:
        return self.mask.dense(self.query.shape[2], self.key.shape[2], self.offset, self.query.device)


@dataclass(frozen=True)
class Kernel:
    """`can`: the answer would be right. `pays`: and it is worth choosing over those further down the list."""

    name: str
    can: Callable[[AttentionCall], bool]
    pays: Callable[[AttentionCall], bool]
    run: Callable[[AttentionCall], Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask = NO_MASK,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    offset: int = 0,
    score: nn.Module | None = None,
    kernel: str | None = None,
) -> Tensor:
    """softmax(QKᵀ · scale + bias, where allowed) V.  `score` replaces the scaled dot product (see score.py)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    call = AttentionCall(query, key, value, mask, scale, bias, dropout, offset, score)
    return (choose_kernel(call) if kernel is None else KERNELS[kernel]).run(call)


def choose_kernel(call: AttentionCall) -> Kernel:
    """The first that can and pays. On a CPU, short keys leave no choice, so decoding need not ask around."""
    if call.key.shape[2] < 2 * BLOCK and call.key.is_cpu and call.packed is None:
        return KERNELS["reference" if call.score is not None else "batched" if _few_queries(call) else "sdpa"]
    return next(kernel for kernel in KERNELS.values() if kernel.can(call) and kernel.pays(call))


def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: Mask = NO_MASK,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    offset: int = 0,
    score: nn.Module | None = None,
) -> Tensor:
    """The weights [B, H, Q, K], differentiable, exactly zero where forbidden. Packed rows come back padded."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    call = AttentionCall(query, key, key, mask, scale, bias, 0.0, offset, score)
    packed = call.packed
    return _weights(call) if packed is None else _unpack_weights(_weights(_padded(call, packed)), packed)


def _unpack_weights(weights: Tensor, packed: PackedMask) -> Tensor:
    """Weights of flush rows [B, H, q, k] at the slots that queries and keys had before packing [B, H, Q, K]."""
    query, key = packed.query, packed.key
    spread = query.unpack(query.right_padded.pack(weights.transpose(1, 2)))  # [B, Q, H, k]
    spread = key.unpack(key.right_padded.pack(spread.permute(0, 3, 1, 2)))  # [B, K, Q, H]
    return spread.permute(0, 3, 2, 1)


def _weights(call: AttentionCall) -> Tensor:
    key = _repeat_kv(call.key, call.query.shape[1])
    if call.score is None:
        scores = call.query @ key.transpose(-1, -2) * call.scale
    else:
        scores = call.score(call.query, key)
    if call.bias is not None:
        scores = scores + call.bias
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if call.mask is NO_MASK:
        return scores.softmax(-1).to(call.query.dtype)
    # The lowest finite number instead of -inf, so that a row with nothing allowed has no NaN in its gradient either.
    forbidden = ~call.allowed()
    fill = Tensor.masked_fill if torch.is_grad_enabled() else Tensor.masked_fill_  # in place where nobody asks again
    scores = fill(scores, forbidden, torch.finfo(scores.dtype).min)
    return fill(scores.softmax(-1), forbidden, 0.0).to(call.query.dtype)


def _repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each key/value head for the query heads of its group."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _padded(call: AttentionCall, packed: PackedMask) -> AttentionCall:
    """The same question with the rows padded again, flush left, so that masks count within the row."""
    queries, keys = packed.query.right_padded, packed.key.right_padded

    def pad(x: Tensor, packing: Packing) -> Tensor:  # [1, H, N, d] -> [B, H, T, d]
        return packing.unpack(x[0].transpose(0, 1)).transpose(1, 2)

    return replace(
        call,
        query=pad(call.query, queries),
        key=pad(call.key, keys),
        value=pad(call.value, keys),
        mask=Padding(keys.mask) & call.mask_without_packing,
    )


def _reference(call: AttentionCall) -> Tensor:
    weights = F.dropout(_weights(call), call.dropout, training=call.dropout > 0)
    return weights @ _repeat_kv(call.value, call.query.shape[1])


def _batched(call: AttentionCall) -> Tensor:
    """The reference, spared a mask that forbids nothing: for few queries of many heads, which the fused kernel of a CPU
    takes one by one."""
    last = call.query.shape[2] == 1 and call.offset + 1 >= call.key.shape[2]
    if last and all(isinstance(part, Causal) for part in call.mask.parts):
        call = replace(call, mask=NO_MASK)
    return _reference(call)


def _few_queries(call: AttentionCall) -> bool:
    batch, heads, queries, _ = call.query.shape
    few = queries <= 4 and call.key.shape[2] <= BLOCK and batch * heads >= 64
    return few and call.key.is_cpu and call.key.shape[1] == heads and not torch.is_grad_enabled()


def _sdpa(call: AttentionCall) -> Tensor:
    """PyTorch's fused attention; a mask it has no flag for is built as a tensor."""
    causal = False
    allowed: Tensor | None = None
    q_len, k_len = call.query.shape[2], call.key.shape[2]
    if len(call.mask.parts) == 1 and isinstance(call.mask.parts[0], Causal) and call.bias is None:
        causal = q_len == k_len and call.offset == 0
        if not causal and call.offset + 1 < k_len:
            allowed = call.allowed()
    elif call.mask is not NO_MASK:
        allowed = call.allowed()
    sees = None
    if allowed is not None and call.query.is_cuda:
        allowed, sees = _open_empty_rows(allowed)
    if call.bias is not None:
        allowed = call.bias if allowed is None else call.bias.masked_fill(~allowed, float("-inf"))
        allowed = allowed.to(call.query.dtype)
    with nullcontext() if _fills_tiles(call) else sdpa_kernel(_backends_without_cudnn()):
        out = F.scaled_dot_product_attention(
            call.query,
            call.key,
            call.value,
            attn_mask=allowed,
            dropout_p=call.dropout,
            is_causal=causal,
            scale=call.scale,
            enable_gqa=call.query.shape[1] != call.key.shape[1],
        )
    return out if sees is None else out.masked_fill(~sees, 0.0)


def _fills_tiles(call: AttentionCall) -> bool:
    """Whether cuDNN may be asked. Where lengths leave a part of its tiles empty and scores are far below zero, its
    gradients may be no numbers (PyTorch 2.11 to 2.13; its issue 196678 tells of half a tile and a mask, a ViT of 64
    patches met it without one, so any part counts here)."""
    if not (call.query.is_cuda and torch.is_grad_enabled()):
        return True
    return call.query.shape[2] % TILE == 0 and call.key.shape[2] % TILE == 0


def _backends_without_cudnn() -> list[SDPBackend]:
    """What PyTorch may use by its own switches, without cuDNN; those cannot be asked while it compiles."""
    if torch.compiler.is_compiling():
        return list(NOT_CUDNN)
    flags = torch.backends.cuda
    may = (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.math_sdp_enabled())
    return [one for one, on in zip(NOT_CUDNN, may, strict=True) if on] or [SDPBackend.MATH]


def _open_empty_rows(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """And which queries see anything. The CPU's kernel gives zeros for one that does not; CUDA's each have their own
    answer, which need be no number: there it sees everything, and its answer and gradient are thrown away."""
    sees = allowed.any(dim=-1, keepdim=True)
    return allowed | ~sees, sees


def _bounded(call: AttentionCall) -> bool:
    """Do a block of queries in the middle see only a part of the keys, so that blocks pay?"""
    n_keys = call.key.shape[2]
    middle = n_keys // 2
    low, high = call.mask.key_range(middle, middle + 1, n_keys)
    return n_keys >= 4 * BLOCK and high - low <= n_keys // 4


def _blocked(call: AttentionCall) -> Tensor:
    """A few queries at a time against the keys they can reach: time and memory linear in the length for windows."""
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
        outputs.append(_sdpa(part))
    return torch.cat(outputs, dim=2)


def _banded(call: AttentionCall) -> Tensor:
    """The blocks of `_blocked` as one batch: each block's keys are copied out, and one call answers them all.

    A GPU is done with a block sooner than with being told about it. And the gradient of a slice is a tensor of the
    whole length, so that one slice a block makes the backward pass quadratic; here there are three at most.
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
        outputs.append(_sdpa(part).unflatten(0, (-1, last - first)))
    return torch.cat(outputs, dim=1).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _bands(call: AttentionCall, n: int, left: int, right: int) -> list[tuple[int, int, Tensor]]:
    """Runs of blocks with the mask of each [1 or B·blocks, 1, BLOCK, width]. Inside a row without padding all blocks
    share one; those whose keys would lie outside the row, or may be padding, have their own.
    """
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
    """How far a window lets queries see to either side."""
    windows = [part for part in call.mask.parts if isinstance(part, Window)]
    causal = any(isinstance(part, Causal) for part in call.mask.parts)
    length = call.key.shape[2]
    left, right = min(part.left for part in windows), min(part.right for part in windows)
    return min(left, length), 0 if causal else min(right, length)


def _can_band(call: AttentionCall) -> bool:
    parts = call.mask.parts
    known = all(isinstance(part, (Window, Causal, Padding)) for part in parts)
    whole = call.offset == 0 and call.query.shape[2] == call.key.shape[2] > 0
    return known and whole and any(isinstance(part, Window) for part in parts) and _plain(call)


def _tiled(call: AttentionCall) -> Tensor:
    """Blocks of an image, each with its memory, as so many heads of one call: what is forbidden is the same for all
    images, and its table is of the size of a block times its memory.
    """
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
    key, value = (around.neighborhoods(_repeat_kv(x, n_heads)) for x in (call.key, call.value))
    tiles = replace(call, query=around.tiles(call.query), key=key, value=value, mask=Dense(allowed))
    return around.untile(_sdpa(tiles), n_heads, length)


def _can_tile(call: AttentionCall) -> bool:
    parts = call.mask.parts
    blocks = [part for part in parts if isinstance(part, BlockLocal2D)]
    known = all(isinstance(part, (BlockLocal2D, Causal, Padding)) for part in parts) and Causal() in parts
    whole = call.offset == 0 and call.query.shape[2] == call.key.shape[2] > 0
    return known and whole and len(blocks) == 1 and blocks[0].surroundings is not None and _plain(call)


def _regrouped(call: AttentionCall) -> Tensor:
    """Dilation as a window: tokens of one remainder modulo the step see only each other, and there are neighbors."""
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
    if spare and len(call.mask.parts) == 1:  # neither a mask of real keys nor a ban on the future hides the filling
        real = length > torch.arange(length + spare, device=call.query.device).view(-1, step).T
        mask = mask & Padding(real.repeat(batch, 1))
    query, key, value = group(call.query), group(call.key), group(call.value)
    out = attend(query, key, value, mask, scale=call.scale, dropout=call.dropout)
    out = out.unflatten(0, (batch, step)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    return out[:, :, :length]


def _can_regroup(call: AttentionCall) -> bool:
    parts = call.mask.parts
    known = all(isinstance(part, (Dilated, Causal, Padding)) for part in parts)
    whole = call.offset == 0 and call.query.shape[2] == call.key.shape[2] > 0
    return known and whole and sum(isinstance(part, Dilated) for part in parts) == 1 and _plain(call)


def _plain(call: AttentionCall) -> bool:
    return call.bias is None and call.score is None


def _long(call: AttentionCall) -> bool:
    return call.key.shape[2] >= 2 * BLOCK


def _per_row(call: AttentionCall) -> Tensor:
    """Packed rows one by one: no work at the padding, no mask for it. Best where a call is cheap (CPU)."""
    packed = call.packed
    assert packed is not None
    sizes = (packed.query.sizes, packed.key.sizes)
    if all(len(set(size)) == 1 and size[0] > 0 for size in sizes):  # equal rows are one batch
        batch = packed.query.batch
        query, key, value = (
            x.view(x.shape[1], batch, -1, x.shape[3]).transpose(0, 1) for x in (call.query, call.key, call.value)
        )
        out = attend(query, key, value, call.mask_without_packing, scale=call.scale, dropout=call.dropout)
        return out.transpose(0, 1).reshape(1, out.shape[1], -1, out.shape[3])
    rows = zip(
        call.query.split(sizes[0], dim=2), call.key.split(sizes[1], 2), call.value.split(sizes[1], 2), strict=True
    )
    outputs = [
        attend(query, key, value, call.mask_without_packing, scale=call.scale, dropout=call.dropout)
        if query.shape[2] and key.shape[2]
        else query.new_zeros(*query.shape[:3], value.shape[3])
        for query, key, value in rows
    ]
    return torch.cat(outputs, dim=2)


def _repad(call: AttentionCall) -> Tensor:
    """Packed rows padded for attention alone: the projections around it still skip the padding."""
    packed = call.packed
    assert packed is not None
    out = _sdpa(_padded(call, packed))  # [B, H, T, v]
    return packed.query.right_padded.pack(out.transpose(1, 2)).transpose(0, 1).unsqueeze(0)


def _varlen(call: AttentionCall) -> Tensor:
    """Packed rows in one launch of the flash kernel (CUDA, half precision)."""
    from torch.nn.attention.varlen import varlen_attn

    packed = call.packed
    assert packed is not None
    n_heads = call.query.shape[1]
    query, key, value = (
        x[0].transpose(0, 1) for x in (call.query, _repeat_kv(call.key, n_heads), _repeat_kv(call.value, n_heads))
    )
    lengths = (packed.query.starts, packed.key.starts, max(packed.query.sizes), max(packed.key.sizes))
    window = (-1, 0) if call.mask_without_packing.parts else (-1, -1)  # (-1, 0): all of the past, nothing of the future
    out = varlen_attn(query, key, value, *lengths, scale=call.scale, window_size=window)
    assert isinstance(out, Tensor)
    return out.transpose(0, 1).unsqueeze(0)


def _can_varlen(call: AttentionCall) -> bool:
    half = call.query.is_cuda and call.query.dtype in (torch.float16, torch.bfloat16)
    plain = call.packed is not None and _plain(call) and call.dropout == 0
    width = call.query.shape[-1]
    fits = width == call.value.shape[-1] and width % 8 == 0 and width <= 256
    return _HAS_VARLEN and half and plain and fits and _flash_causal(call)


def _flash_causal(call: AttentionCall) -> bool:
    """Flash attention lines causal rows up at their ends, we at their beginnings: the same where lengths are."""
    packed = call.packed
    same = packed is not None and packed.query.sizes == packed.key.sizes
    return not call.mask_without_packing.parts or (
        same and all(isinstance(part, Causal) for part in call.mask_without_packing.parts)
    )


def _has_varlen() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in inspect.signature(varlen_attn).parameters


_HAS_VARLEN = torch.cuda.is_available() and _has_varlen()


def _single(call: AttentionCall) -> Tensor:
    """One query a row over a cache of fixed size, of which only the filled columns are read (CUDA; see steady.py)."""
    from anyformer.core.gpu import single_query

    mask = call.mask
    assert isinstance(mask, StaticCacheMask) and mask.fresh is not None
    return single_query(
        call.query, *mask.fresh, call.key, call.value, mask.first, mask.column, mask.span, mask.table, call.scale
    )


def _can_single(call: AttentionCall) -> bool:
    return isinstance(call.mask, StaticCacheMask) and call.mask.fresh is not None


def _can_unpack(call: AttentionCall) -> bool:
    return call.packed is not None and _plain(call)


def _can_fuse(call: AttentionCall) -> bool:
    return call.packed is None and call.score is None


def _always(call: AttentionCall) -> bool:
    return True


def _long_rows_on_cpu(call: AttentionCall) -> bool:
    """Below about 16 tokens a row, calling once a row costs more than padding does."""
    rows = call.packed.query.batch if call.packed is not None else 1
    return not call.query.is_cuda and call.query.shape[2] >= 16 * rows


KERNELS: dict[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel("single", _can_single, _always, _single),
        Kernel("varlen", _can_varlen, _always, _varlen),
        Kernel("each", _can_unpack, _long_rows_on_cpu, _per_row),
        Kernel("repad", _can_unpack, _always, _repad),
        Kernel("regrouped", _can_regroup, _long, _regrouped),
        Kernel("tiled", _can_tile, _always, _tiled),
        Kernel("banded", _can_band, _bounded, _banded),
        Kernel("blocked", _can_fuse, _bounded, _blocked),
        Kernel("batched", _can_fuse, _few_queries, _batched),
        Kernel("sdpa", _can_fuse, _always, _sdpa),
        Kernel("reference", _always, _always, _reference),
    )
}
