"""Picking tokens by their scores [R, V]: the most probable, the k most probable, or one that is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.core.linear import HAS_TRITON
from anyformer.generation.logits_processors import NEG_INF

MOST_RANKED = 65_536  # words, of which one program of a GPU holds a row
TOP_BLOCK = 128  # numbers of which the largest stands for all


def exact(scores: Tensor) -> Tensor:
    """Scores in at least single precision, in which transformers too applies its rules and returns them."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def gumbel(scores: Tensor, dice: Sequence[torch.Generator]) -> Tensor:
    """Noise for scores [R, V], from a die a row; without dice, from PyTorch's own."""
    if dice:
        even = torch.stack([torch.rand(scores.shape[1:], generator=die, device=scores.device) for die in dice])
    else:
        even = torch.rand(scores.shape, device=scores.device)
    return -torch.log(-torch.log(even.clamp(torch.finfo(even.dtype).tiny, 1 - 1e-7)))


def best_logs(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest log-probabilities of each row of scores [R, V], and their tokens."""
    from anyformer.core.gpu import topk_logsumexp

    values, tokens, sums = topk_logsumexp(scores, k)
    return values - sums[:, None], tokens


def can_rank(scores: Tensor) -> bool:
    """Is there a kernel for `best_logs`?"""
    return HAS_TRITON and scores.is_cuda and scores.shape[-1] <= MOST_RANKED and scores.dtype != torch.float64


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row [R, V] and their places, as topk gives them.

    They lie in the k blocks with the largest maxima, and finding maxima is what a CPU does fast.
    """
    n = scores.shape[-1] // TOP_BLOCK
    if scores.is_cuda or n < 4 * k:
        return tuple(scores.topk(k))  # type: ignore[return-value]
    blocks, rest = scores[:, : n * TOP_BLOCK].unflatten(1, (n, TOP_BLOCK)), scores[:, n * TOP_BLOCK :]
    chosen = blocks.amax(dim=-1).topk(k).indices  # [R, k]
    places = (chosen[..., None] * TOP_BLOCK + torch.arange(TOP_BLOCK, device=scores.device)).flatten(1)
    tail = torch.arange(n * TOP_BLOCK, scores.shape[-1], device=scores.device).expand(len(scores), -1)
    best, index = torch.cat([scores.gather(1, places), rest], dim=1).topk(k)
    return best, torch.cat([places, tail], dim=1).gather(1, index)


def largest(scores: Tensor) -> Tensor:
    """The place of the largest of each row [R, V], the first of equals, as argmax gives it."""
    n = scores.shape[-1] // TOP_BLOCK
    if scores.is_cuda or n < 4:
        return scores.argmax(dim=-1)
    blocks, rest = scores[:, : n * TOP_BLOCK].unflatten(1, (n, TOP_BLOCK)), scores[:, n * TOP_BLOCK :]
    maxima = blocks.amax(dim=-1)  # [R, n], which a CPU finds many times faster than places
    block = maxima.argmax(dim=-1, keepdim=True)
    near = blocks.gather(1, block[..., None].expand(-1, 1, TOP_BLOCK)).squeeze(1)
    found = block * TOP_BLOCK + near.argmax(dim=-1, keepdim=True)
    if rest.shape[1]:
        most, place = rest.max(dim=-1, keepdim=True)
        found = torch.where(most > maxima.gather(1, block), place + n * TOP_BLOCK, found)
    return found.squeeze(1)


def pick(scores: Tensor, allowed: Tensor) -> Tensor:
    """As `largest`; -1 in rows of which `allowed` [R, V] allows no token."""
    token = largest(scores)
    return token.masked_fill(allowed.gather(1, token[:, None])[:, 0] == NEG_INF, -1)
