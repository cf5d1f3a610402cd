"""Vectors for whole rows: a row without a real token has a vector of zeros, by every pooling."""

from __future__ import annotations

import pytest
import torch

from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.heads.embed import SENTENCE_POOLS, SentenceEmbeddingHead

X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)) - 5  # all below zero


@pytest.mark.parametrize("pool", SENTENCE_POOLS)
def test_an_empty_row_has_a_vector_of_zeros(pool: str) -> None:
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    x = X.clone().requires_grad_()
    pooled = SENTENCE_POOLS[pool](Tokens(x, mask))
    assert torch.equal(pooled[1], torch.zeros(4)) and pooled[[0, 2]].isfinite().all()
    pooled.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and not x.grad[1].any()


def test_the_largest_of_the_real_tokens() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]]).bool()
    expected = torch.stack([x[row].amax(dim=0) for x, row in zip(X, mask, strict=True)])
    assert torch.equal(SENTENCE_POOLS["max"](Tokens(X, mask)), expected)
    assert torch.equal(SENTENCE_POOLS["max"](Tokens(X)), X.amax(dim=1))


def test_several_poolings_of_an_empty_row() -> None:
    run = ForwardContext({}, None, training=False)
    run.tokens["encoder"] = Tokens(X, torch.tensor([[1] * 5, [0] * 5, [1] * 5]).bool())
    for normalize in (False, True):
        vectors = SentenceEmbeddingHead("encoder", ("cls", "max", "mean"), normalize)(run)["sentence_embedding"]
        assert vectors.isfinite().all() and not vectors[1].any()
