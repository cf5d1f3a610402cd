"""The largest, and the k largest, by way of the largest of each block."""

from __future__ import annotations

import pytest
import torch

from anyformer.generation.ranking import TOP_BLOCK, largest, top


@pytest.mark.parametrize("width", [50, 32 * TOP_BLOCK, 33 * TOP_BLOCK + 17, 5000])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_top_is_topk(width: int, k: int) -> None:
    """Same values in the same order, at places that hold them, each once, wherever in a row they lie."""
    torch.manual_seed(width + k)
    scores = torch.randn(6, width)
    scores[0, -3:] = 9.0  # in what no block covers, and equal
    scores[1, :8] = torch.arange(8.0) + 10  # all in one block
    scores[2] = float("-inf")
    scores[2, width // 2] = 0.0
    best, places = top(scores, k)
    assert torch.equal(best, scores.topk(k).values)
    assert torch.equal(scores.gather(1, places), best)
    assert all(len(set(row)) == k for row in places.tolist())


@pytest.mark.parametrize("width", [50, 32 * TOP_BLOCK, 33 * TOP_BLOCK + 17, 5000])
def test_largest_is_argmax(width: int) -> None:
    """The same place wherever in a row it lies; of equals the first, in whatever blocks they stand."""
    torch.manual_seed(width)
    scores = torch.randn(8, width)
    scores[0, -1] = 9.0
    scores[1, 0] = 9.0
    scores[2, [3, 7, width - 1]] = 9.0
    scores[3, [width // 2, width - 1]] = 9.0
    scores[4] = float("-inf")
    scores[4, width // 2] = 0.0
    scores[5] = 1.0
    assert largest(scores).tolist() == scores.argmax(dim=-1).tolist()
    assert largest(scores)[[2, 3, 5]].tolist() == [3, width // 2, 0]
