"""Choosing tokens by scores [R, V]: the most probable, the top k, or a sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.core import rewrites
from anyformer.generation.logits_processors import NEG_INF

MOST_RANKED = 65_536  # largest vocabulary of the GPU kernel, whose program holds one row
TOP_BLOCK = 128  # block size of the two-stage maximum


def exact(scores: Tensor) -> Tensor:
    """Return scores in at least single precision, in which transformers also applies its processors."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def gumbel(scores: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Gumbel noise for scores [R, V], from one generator per row; without generators, from PyTorch's default one."""
    if generators:
        even = torch.stack(
            [torch.rand(scores.shape[1:], generator=generator, device=scores.device) for generator in generators]
        )
    else:
        even = torch.rand(scores.shape, device=scores.device)
    return -torch.log(-torch.log(even.clamp(torch.finfo(even.dtype).tiny, 1 - 1e-7)))


def best_logs(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest log-probabilities of each row of scores [R, V], and their tokens."""
    values, tokens, sums = rewrites.apply("topk_logsumexp")(scores, k)
    return values - sums[:, None], tokens


def can_rank(scores: Tensor) -> bool:
    """Whether a GPU kernel for `best_logs` is available."""
    return (
        scores.is_cuda
        and "topk_logsumexp" in rewrites.RULES
        and scores.shape[-1] <= MOST_RANKED
        and scores.dtype != torch.float64
    )


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each row [R, V] and their indices, as `topk` does.

    They lie in the k blocks with the largest maxima; maxima are fast to compute on CPU.
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
    """Return the index of the largest score of each row [R, V], the first of equals, as `argmax` does."""
    n = scores.shape[-1] // TOP_BLOCK
    if scores.is_cuda or n < 4:
        return scores.argmax(dim=-1)
    blocks, rest = scores[:, : n * TOP_BLOCK].unflatten(1, (n, TOP_BLOCK)), scores[:, n * TOP_BLOCK :]
    maxima = blocks.amax(dim=-1)  # [R, n]; on CPU amax is many times faster than argmax
    block = maxima.argmax(dim=-1, keepdim=True)
    near = blocks.gather(1, block[..., None].expand(-1, 1, TOP_BLOCK)).squeeze(1)
    found = block * TOP_BLOCK + near.argmax(dim=-1, keepdim=True)
    if rest.shape[1]:
        most, place = rest.max(dim=-1, keepdim=True)
        found = torch.where(most > maxima.gather(1, block), place + n * TOP_BLOCK, found)
    return found.squeeze(1)


def pick(scores: Tensor, allowed: Tensor) -> Tensor:
    """As `largest`, but -1 in rows in which `allowed` [R, V] allows no token."""
    token = largest(scores)
    return token.masked_fill(allowed.gather(1, token[:, None])[:, 0] == NEG_INF, -1)
