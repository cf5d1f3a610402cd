"""The one currency: packing and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.core.packing import Packing
from anyformer.core.tokens import Tokens

MASKS = {
    "right": [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]],
    "left": [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]],
    "inner": [[1, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1]],
    "an empty row": [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]],
    "empty rows at the ends": [[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]],
    "nothing": [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    "whole": [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]],
}
every_mask = pytest.mark.parametrize("mask", [torch.tensor(m).bool() for m in MASKS.values()], ids=MASKS.keys())


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@every_mask
def test_pack_and_pad_are_a_round_trip(mask: Tensor) -> None:
    """Packing keeps the real tokens in order; padding puts each back where it was, zeros elsewhere."""
    x, code = _normal(3, 4, 2), _normal(3, 4, 2, seed=1)
    positions = torch.arange(12).view(3, 4)
    packed = Tokens(x, mask, positions, code, grid=(2, 2)).pack()
    assert packed.packed
    assert packed.mask is None
    cells = [(b, t) for b in range(3) for t in range(4) if mask[b, t]]
    for field, source in ((packed.x, x), (packed.positions, positions), (packed.pos_embed, code)):
        assert len(field) == len(cells)
        assert all(torch.equal(field[n], source[b, t]) for n, (b, t) in enumerate(cells))
    assert packed.pack() is packed
    back = packed.pad()
    there = mask.unsqueeze(-1)
    assert torch.equal(back.x, x.where(there, 0.0))
    assert torch.equal(back.pos_embed, code.where(there, 0.0))
    assert torch.equal(back.positions, positions.where(mask, 0))
    assert torch.equal(back.mask, mask)
    assert back.grid == (2, 2)
    assert back.pad() is back


@every_mask
def test_a_packing_knows_its_rows(mask: Tensor) -> None:
    """Row, place and start of every packed token, by counting."""
    packing = Packing.of(mask)
    cells = [(b, t) for b in range(3) for t in range(4) if mask[b, t]]
    rows = [b for b, _ in cells]
    assert packing.batch == 3
    assert packing.sizes == tuple(rows.count(b) for b in range(3))
    assert packing.rows.tolist() == rows
    assert packing.places.tolist() == [rows[:n].count(b) for n, b in enumerate(rows)]
    assert packing.starts.tolist() == [sum(b < row for b in rows) for row in range(4)]
    assert torch.equal(packing.mask, mask)


@every_mask
def test_flush_rows_begin_at_their_first_real_token(mask: Tensor) -> None:
    """The same rows padded on the right and no further than the longest, whatever the padding was."""
    packing = Packing.of(mask)
    x = packing.pack(_normal(3, 4, 2))
    flush = packing.right_padded
    padded = flush.unpack(x)
    assert padded.shape[:2] == (3, max(packing.sizes))
    for b, row in enumerate(x.split(list(packing.sizes))):
        assert torch.equal(padded[b, : len(row)], row)
        assert (padded[b, len(row) :] == 0).all()
    assert torch.equal(flush.pack(padded), x)


def test_packing_without_a_mask_keeps_everything() -> None:
    """Rows with nothing to drop can be packed too, to meet packed ones; shared positions are repeated."""
    x, code = _normal(2, 3, 4), _normal(1, 3, 4, seed=1)
    packed = Tokens(x, positions=torch.arange(3).unsqueeze(0), pos_embed=code).pack()
    assert torch.equal(packed.x, x.flatten(0, 1))
    assert packed.positions.tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.equal(packed.pos_embed, code.expand(2, -1, -1).flatten(0, 1))
    assert torch.equal(packed.pad().x, x)


def test_gradients_pass_through_packing() -> None:
    """Real tokens get their gradient, padding none."""
    mask = torch.tensor(MASKS["inner"]).bool()
    x = _normal(3, 4, 2).requires_grad_()
    Tokens(x, mask).pack().pad().x.sum().backward()
    assert torch.equal(x.grad, mask.unsqueeze(-1).expand(-1, -1, 2).float())


def test_replace_keeps_the_rest() -> None:
    """New vectors, the same mask, places, code and packing."""
    tokens = Tokens(_normal(3, 4, 2), torch.tensor(MASKS["left"]).bool(), pos_embed=_normal(3, 4, 2)).pack()
    other = tokens.replace(tokens.x + 1)
    assert torch.equal(other.x, tokens.x + 1)
    assert other.packing is tokens.packing
    assert other.pos_embed is tokens.pos_embed
