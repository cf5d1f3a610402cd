"""Every pooling reads real tokens only, and one head does them all."""

from __future__ import annotations

import pytest
import torch

from anyformer.core.norms import NormConfig
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.heads.classify import ClassificationConfig, ClassificationHead
from anyformer.heads.pooling import POOLS, PoolerConfig, end_token

X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
EXPECTED = {
    "first": torch.stack([X[0, 0], X[1, 2], X[2, 0]]),
    "last": torch.stack([X[0, 1], X[1, 4], X[2, 4]]),
    "mean": torch.stack([X[0, :2].mean(0), X[1, 2:].mean(0), X[2].mean(0)]),
    "max": torch.stack([X[0, :2].amax(0), X[1, 2:].amax(0), X[2].amax(0)]),
    "pair": X[:, :2].mean(1),
    "first_mean": torch.stack(
        [torch.cat([X[0, 0], X[0, 1]]), torch.cat([X[1, 2], X[1, 3:].mean(0)]), torch.cat([X[2, 0], X[2, 1:].mean(0)])]
    ),
}


@pytest.mark.parametrize("method", POOLS)
def test_padding_is_left_out(method: str) -> None:
    padded = Tokens(X, MASK) if method != "pair" else Tokens(X)
    torch.testing.assert_close(POOLS[method](padded), EXPECTED[method])
    torch.testing.assert_close(POOLS[method](padded.pack()), EXPECTED[method])


def test_the_end_token() -> None:
    ids = torch.tensor([[5, 9, 5, 9, 0], [9, 1, 1, 1, 1], [1, 1, 1, 1, 9]])
    assert torch.equal(end_token(Tokens(X), ids, 9), torch.stack([X[0, 3], X[1, 0], X[2, 4]]))
    with pytest.raises(InputError, match="end token"):
        end_token(Tokens(X), ids, 7)


def test_the_order_of_its_steps() -> None:
    """Projection, pooling without the skipped tokens, norm, activation, dense layer, classes."""
    config = ClassificationConfig(
        d_model=4,
        stage="encoder",
        n_labels=3,
        pooling="mean",
        skip=1,
        d_project=6,
        norm=NormConfig(),
        activation="relu",
        pool=PoolerConfig(d_model=6, d_out=5),
        bias=False,
    )
    torch.manual_seed(0)
    head = ClassificationHead(config)
    run = ForwardContext({"labels": torch.tensor([0, 1, 2])}, None, training=False)
    run.tokens["encoder"] = Tokens(X)
    assert head.project is not None and head.norm is not None and head.pool is not None and head.classes is not None
    x = torch.relu(head.norm(head.project(X)[:, 1:].mean(dim=1)))
    expected = torch.tanh(x @ head.pool.weight.T + head.pool.bias) @ head.classes.weight.T
    out = head(run)
    torch.testing.assert_close(out["logits"], expected)
    torch.testing.assert_close(out["loss"], torch.nn.functional.cross_entropy(expected, torch.tensor([0, 1, 2])))
