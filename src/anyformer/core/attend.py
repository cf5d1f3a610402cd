"""softmax(QKᵀ)V: one interface, a reference implementation, and PyTorch's fused kernel.

    attend(query, key, value, mask)      query [B, H, Q, d], key [B, G, K, d], value [B, G, K, v] -> [B, H, Q, v]

G divides H: each group of H/G query heads shares one key/value head. B of the keys may divide B of the queries: beams
share the keys of one source. `mask` is True for allowed pairs; a query that may attend to nothing gives zeros. `bias`
[.., H, Q, K] is added to the scores. `offset` is the index of the first query among the keys (cached decoding). A
faster kernel adds a chooser: given a call, it returns the kernel to take, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyformer.core.masks import NO_MASK, Causal, Mask, PackedMask, Padding
from anyformer.core.packing import Packing

TILE = 128  # queries or keys that cuDNN handles at a time
NOT_CUDNN = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one attention call."""

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
    """An attention kernel. `can`: whether it supports a call. `pays`: whether it is faster than the kernels after
    it."""

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
    beams = max(query.shape[0] // max(key.shape[0], 1), 1)
    call = AttentionCall(merge_beams(query, beams), key, value, mask, scale, bias, dropout, offset, score)
    chosen = choose_kernel(call) if kernel is None else KERNELS[kernel]
    if chosen.run is not sdpa:
        return split_beams(chosen.run(call), beams)
    arguments, reads = sdpa_arguments(call)
    with backends(call):
        out = F.scaled_dot_product_attention(**arguments)
    return split_beams(out if reads is None else out.masked_fill(~reads, 0.0), beams)


def choose_kernel(call: AttentionCall) -> Kernel:
    """The kernel of the first chooser that returns one; otherwise PyTorch's fused kernel, or the reference if
    unsupported."""
    for choose in CHOOSERS:
        kernel = choose(call)
        if kernel is not None:
            return kernel
    return KERNELS["reference" if call.score is not None or call.packed is not None else "sdpa"]


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
    beams = max(query.shape[0] // max(key.shape[0], 1), 1)
    call = AttentionCall(merge_beams(query, beams), key, key, mask, scale, bias, 0.0, offset, score)
    packed = call.packed
    if packed is not None:
        return _unpack_weights(_weights(repadded(call, packed)), packed)
    return split_beams(_weights(call), beams)


def merge_beams(query: Tensor, beams: int) -> Tensor:
    """[B·beams, H, Q, d] -> [B·beams / beams, H, beams·Q, d]: the keys that all beams share see them as more
    queries."""
    return query if beams == 1 else query.unflatten(0, (-1, beams)).transpose(1, 2).flatten(2, 3)


def split_beams(x: Tensor, beams: int) -> Tensor:
    """[B, H, beams·Q, d] -> [B·beams, H, Q, d]"""
    return x if beams == 1 else x.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)


def _unpack_weights(weights: Tensor, packed: PackedMask) -> Tensor:
    """Weights of right-padded rows [B, H, q, k], moved to the positions before packing [B, H, Q, K]."""
    query, key = packed.query, packed.key
    spread = query.unpack(query.right_padded.pack(weights.transpose(1, 2)))  # [B, Q, H, k]
    spread = key.unpack(key.right_padded.pack(spread.permute(0, 3, 1, 2)))  # [B, K, Q, H]
    return spread.permute(0, 3, 2, 1)


def _weights(call: AttentionCall) -> Tensor:
    key = repeat_kv(call.key, call.query.shape[1])
    if call.score is None:
        scores = call.query @ key.transpose(-1, -2) * call.scale
    else:
        scores = call.score(call.query, key)
    if call.bias is not None:
        scores = scores + call.bias
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if not call.mask.parts:
        return scores.softmax(-1).to(call.query.dtype)
    # The lowest finite number instead of -inf, so that a row with nothing allowed has no NaN in its gradient either.
    forbidden = ~call.allowed()
    fill = Tensor.masked_fill if torch.is_grad_enabled() else Tensor.masked_fill_  # in place without autograd
    scores = fill(scores, forbidden, torch.finfo(scores.dtype).min)
    return fill(scores.softmax(-1), forbidden, 0.0).to(call.query.dtype)


def repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each key/value head for the query heads of its group."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def repadded(call: AttentionCall, packed: PackedMask) -> AttentionCall:
    """The same call with the rows padded on the right, so that masks use positions within the row."""
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


def reference(call: AttentionCall) -> Tensor:
    weights = F.dropout(_weights(call), call.dropout, training=call.dropout > 0)
    return weights @ repeat_kv(call.value, call.query.shape[1])


def sdpa(call: AttentionCall) -> Tensor:
    """PyTorch's fused attention."""
    arguments, reads = sdpa_arguments(call)
    with backends(call):
        out = F.scaled_dot_product_attention(**arguments)
    return out if reads is None else out.masked_fill(~reads, 0.0)


def sdpa_arguments(call: AttentionCall) -> tuple[dict[str, Any], Tensor | None]:
    """The arguments of PyTorch's fused attention, with a mask tensor if there is no flag for the mask; and which
    queries may attend to anything, if the others must be zeroed."""
    causal = False
    allowed: Tensor | None = None
    q_len, k_len = call.query.shape[2], call.key.shape[2]
    if len(call.mask.parts) == 1 and isinstance(call.mask.parts[0], Causal) and call.bias is None:
        causal = q_len == k_len and call.offset == 0
        if not causal and call.offset + 1 < k_len:
            allowed = call.allowed()
    elif call.mask.parts:
        allowed = call.allowed()
    reads = None
    if allowed is not None and call.query.is_cuda:
        allowed, reads = _open_empty_rows(allowed)
    if call.bias is not None:
        allowed = call.bias if allowed is None else call.bias.masked_fill(~allowed, float("-inf"))
        allowed = allowed.to(call.query.dtype)
    grouped = call.query.shape[1] != call.key.shape[1]
    tensors = {"query": call.query, "key": call.key, "value": call.value, "attn_mask": allowed}
    options = {"dropout_p": call.dropout, "is_causal": causal, "scale": call.scale, "enable_gqa": grouped}
    return {**tensors, **options}, reads


def backends(call: AttentionCall) -> AbstractContextManager[None]:
    """The implementations that PyTorch may choose from."""
    return nullcontext() if _fills_tiles(call) else sdpa_kernel(_backends_without_cudnn())


def _fills_tiles(call: AttentionCall) -> bool:
    """Whether cuDNN may be used. If lengths do not fill its tiles and scores are far below zero, its gradients may be
    NaN (PyTorch 2.11 to 2.13). PyTorch's issue 196678 reports it for half a tile and a mask, but it also occurs without
    a mask in a ViT with 64 patches, so every partial tile counts."""
    if not (call.query.is_cuda and torch.is_grad_enabled()):
        return True
    return call.query.shape[2] % TILE == 0 and call.key.shape[2] % TILE == 0


def _backends_without_cudnn() -> list[SDPBackend]:
    """The backends enabled in PyTorch, without cuDNN. The switches cannot be read while PyTorch compiles."""
    if torch.compiler.is_compiling():
        return list(NOT_CUDNN)
    flags = torch.backends.cuda
    may = (flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.math_sdp_enabled())
    return [one for one, on in zip(NOT_CUDNN, may, strict=True) if on] or [SDPBackend.MATH]


def _open_empty_rows(allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Let queries that see nothing see everything, and return which queries see anything. The CPU kernel gives zeros
    for such queries; CUDA kernels may give NaN, so there the result and the gradient are discarded."""
    sees = allowed.any(dim=-1, keepdim=True)
    return allowed | ~sees, sees


def _always(call: AttentionCall) -> bool:
    return True


KERNELS: dict[str, Kernel] = {
    "sdpa": Kernel("sdpa", lambda call: call.packed is None and call.score is None, _always, sdpa),
    "reference": Kernel("reference", _always, _always, reference),
}
CHOOSERS: list[Callable[[AttentionCall], Kernel | None]] = []  # anyformer.fast adds one
