"""softmax(QKᵀ)V: one interface, a reference implementation, and PyTorch's fused kernel.

    attend(query, key, value, mask)      query [B, H, Q, d], key [B, G, K, d], value [B, G, K, v] -> [B, H, Q, v]

G divides H: each group of H/G query heads shares one key/value head. B of the keys may divide B of the queries: beams
share the keys of one source. `mask` is True for allowed pairs; a query that may attend to nothing gives zeros. `bias`
[.., H, Q, K] is added to the scores. `offset` is the index of the first query among the keys (cached decoding). A
faster kernel adds a chooser: given a call, it returns the kernel to take, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.masks import NO_MASK, Causal, Mask, PackedMask, Padding


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

    def allowed(self) -> Tensor:
        return self.mask.dense(self.query.shape[2], self.key.shape[2], self.offset, self.query.device)


def always(call: AttentionCall) -> bool:
    return True


@dataclass(frozen=True)
class Kernel:
    """An attention kernel. `can`: whether it supports a call. `pays`: whether it is faster than the kernels after
    it."""

    name: str
    run: Callable[[AttentionCall], Tensor]
    can: Callable[[AttentionCall], bool] = always
    pays: Callable[[AttentionCall], bool] = always


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
    weights: Tensor | None = None,
) -> Tensor:
    """softmax(QKᵀ · scale + bias, where allowed) V.  `score` replaces the scaled dot product (see score.py).

    `weights`, of `attention_weights` with the same arguments, are those that somebody watches: gradients pass through
    them, and the result is the same as without.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    beams = max(query.shape[0] // max(key.shape[0], 1), 1)
    call = AttentionCall(merge_beams(query, beams), key, value, mask, scale, bias, dropout, offset, score)
    chosen = choose_kernel(call) if kernel is None else KERNELS[kernel]
    if weights is not None and weights.requires_grad:
        out = _through(merge_beams(weights, beams), call, chosen)
    elif chosen.run is sdpa:  # here and not in `sdpa`, so that a debugger has one step less to PyTorch
        out = F.scaled_dot_product_attention(**sdpa_arguments(call))
    else:
        out = chosen.run(call)
    return split_beams(out, beams)


def choose_kernel(call: AttentionCall) -> Kernel:
    """The kernel of the first chooser that returns one; otherwise PyTorch's fused kernel, or the reference if
    unsupported."""
    for choose in CHOOSERS:
        kernel = choose(call)
        if kernel is not None:
            return kernel
    return KERNELS["sdpa" if can_sdpa(call) else "reference"]


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
    packed = mask.packed
    if packed is None:
        return split_beams(_weights(call), beams)
    return _unpack_weights(_weights(repadded(call, packed)), packed)


def merge_beams(query: Tensor, beams: int) -> Tensor:
    """[B·beams, H, Q, d] -> [B, H, beams·Q, d]: the keys that all beams share see them as more queries."""
    return query if beams == 1 else query.unflatten(0, (-1, beams)).transpose(1, 2).flatten(2, 3)


def split_beams(x: Tensor, beams: int) -> Tensor:
    """[B, H, beams·Q, d] -> [B·beams, H, Q, d]"""
    return x if beams == 1 else x.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)


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


def reference(call: AttentionCall) -> Tensor:
    weights = F.dropout(_weights(call), call.dropout, training=call.dropout > 0)
    return weights @ repeat_kv(call.value, call.query.shape[1])


def sdpa(call: AttentionCall) -> Tensor:
    """PyTorch's fused attention."""
    return F.scaled_dot_product_attention(**sdpa_arguments(call))


def can_sdpa(call: AttentionCall) -> bool:
    """Whether PyTorch's fused attention gives the right numbers. On a GPU its kernels need care with masks and
    gradients (fast/attention.py)."""
    careful = call.query.is_cuda and (bool(call.mask.parts) or torch.is_grad_enabled())
    return call.score is None and call.mask.packed is None and not careful


def needs_mask(call: AttentionCall) -> bool:
    """Whether PyTorch's fused attention needs the mask as a tensor: no flag says the same."""
    parts, last_sees_all = call.mask.parts, call.offset + 1 >= call.key.shape[2]
    causal = len(parts) == 1 and isinstance(parts[0], Causal) and call.bias is None
    return bool(parts) and not (causal and (starts_together(call) or last_sees_all))


def starts_together(call: AttentionCall) -> bool:
    return call.offset == 0 and bool(call.query.shape[2] == call.key.shape[2])  # not a SymBool


def sdpa_arguments(call: AttentionCall) -> dict[str, Any]:
    """The arguments of PyTorch's fused attention, with a mask tensor if there is no flag for the mask."""
    allowed = call.allowed() if needs_mask(call) else None
    causal = bool(call.mask.parts) and allowed is None and starts_together(call)
    if call.bias is not None:
        allowed = call.bias if allowed is None else call.bias.masked_fill(~allowed, float("-inf"))
        allowed = allowed.to(call.query.dtype)
    tensors = {"query": call.query, "key": call.key, "value": call.value, "attn_mask": allowed}
    grouped = bool(call.query.shape[1] != call.key.shape[1])  # a tensor while torch.jit traces
    return {**tensors, "dropout_p": call.dropout, "is_causal": causal, "scale": call.scale, "enable_gqa": grouped}


def repadded(call: AttentionCall, packed: PackedMask) -> AttentionCall:
    """The same call with the rows padded on the right, so that masks use positions within the row."""
    queries, keys = packed.query.right_padded, packed.key.right_padded
    query, key, value = queries.unpack_heads(call.query), keys.unpack_heads(call.key), keys.unpack_heads(call.value)
    return replace(call, query=query, key=key, value=value, mask=Padding(keys.mask) & call.mask.without_packing)


def _unpack_weights(weights: Tensor, packed: PackedMask) -> Tensor:
    """Weights of right-padded rows [B, H, q, k], moved to the positions before packing [B, H, Q, K]."""
    query, key = packed.query, packed.key
    spread = query.unpack_heads(query.right_padded.pack_heads(weights)).transpose(2, 3)  # [B, H, k, Q]
    return key.unpack_heads(key.right_padded.pack_heads(spread)).transpose(2, 3)


def _through(weights: Tensor, call: AttentionCall, kernel: Kernel) -> Tensor:
    """The kernel's numbers, with gradients that pass through the weights of `attention_weights`."""
    packed, n_heads = call.mask.packed, call.query.shape[1]
    value = call.value if packed is None else packed.key.unpack_heads(call.value)
    out = F.dropout(weights, call.dropout) @ repeat_kv(value, n_heads)
    out = out if packed is None else packed.query.pack_heads(out)
    return out if call.dropout else kernel.run(call).detach() + (out - out.detach())


KERNELS = {"sdpa": Kernel("sdpa", sdpa, can_sdpa), "reference": Kernel("reference", reference)}
CHOOSERS: list[Callable[[AttentionCall], Kernel | None]] = []  # anyformer.fast adds one
