"""Sequences taken apart and put together."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.core.tokens import Tokens
from anyformer.inputs.sequences import concat, restore, take


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_take_keeps_tokens_in_the_order_given() -> None:
    """Each row keeps its own tokens, with mask, positions and code; shared ones are spread first."""
    index = torch.tensor([[2, 0], [3, 3]])
    x, mask, code = _normal(2, 4, 3), torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]]).bool(), _normal(1, 4, 3, seed=1)
    taken = take(Tokens(x, mask, torch.arange(4).unsqueeze(0), code), index)
    for b in range(2):
        for n, t in enumerate(index[b].tolist()):
            assert torch.equal(taken.x[b, n], x[b, t])
            assert torch.equal(taken.pos_embed[b, n], code[0, t])
            assert taken.mask[b, n] == mask[b, t]
    assert taken.positions.tolist() == index.tolist()


def test_restore_undoes_take() -> None:
    """MAE: drop by a random order, then put the kept tokens back and the mask token everywhere else."""
    x, fill = _normal(2, 6, 3), torch.tensor([7.0, 8.0, 9.0])
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(s)) for s in (0, 1)])
    kept = order[:, :2]
    restored = restore(take(Tokens(x), kept).x, order.argsort(dim=1), fill)
    for b in range(2):
        for t in range(6):
            assert torch.equal(restored[b, t], x[b, t] if t in kept[b] else fill)


def test_cat_joins_sequences() -> None:
    """A shared class token before patches, padded ones after whole ones: missing masks count as real."""
    mask = torch.tensor([[1, 0], [1, 1]]).bool()
    first, second = Tokens(_normal(1, 1, 3)), Tokens(_normal(2, 2, 3, seed=1), mask)
    joined = concat([first, second])
    assert torch.equal(joined.x, torch.cat([first.x.expand(2, -1, -1), second.x], dim=1))
    assert joined.mask.tolist() == [[True, True, False], [True, True, True]]
    assert joined.positions is None
    assert concat([first, first]).mask is None
    places = concat([first, Tokens(second.x, positions=torch.tensor([[4, 5]]))]).positions
    assert places.tolist() == [[0, 4, 5], [0, 4, 5]]
