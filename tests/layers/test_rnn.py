"""A recurrent cell whose gates hold its state beyond the end of a row, against PyTorch's over rows of known lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from anyformer.layers.rnn import CellType, RNNState, make_cell, run_cell, run_cell_static, update_moved_rows

SIZES = torch.tensor([5, 1, 0, 3])  # the longest, the shortest, an empty row


def made(kind: CellType, n_layers: int, both_ways: bool, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(n_layers)
    config = SimpleNamespace(cell=kind, d_hidden=4, n_layers=n_layers, dropout=0.0)
    return make_cell(config, 3, bidirectional=both_ways).to(dtype)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_held_is_packed(kind: CellType, n_layers: int, both_ways: bool) -> None:
    """Outputs at real tokens, last states and gradients, whatever stands in the slots that are not real."""
    cell, real = made(kind, n_layers, both_ways), torch.arange(5) < SIZES[:, None]
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    noise = x + 100 * torch.randn_like(x) * ~real.unsqueeze(-1)
    found = []
    for run, given in (
        (lambda one: run_cell(cell, one, {}, SIZES), x),
        (lambda one: run_cell_static(cell, one, real), noise),
    ):
        given = given.clone().requires_grad_()
        cell.zero_grad()
        y, carry = run(given)
        y = y * real.unsqueeze(-1)
        sum((one * torch.arange(one.numel()).view(one.shape)).sin().sum() for one in (y, *carry.values())).backward()
        found.append((y.detach(), {name: one.detach() for name, one in carry.items()}, given.grad * real.unsqueeze(-1)))
        found[-1] += ([one.grad.clone() for one in cell.parameters()],)
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
    assert all(one.shape == (4, n_layers * (1 + both_ways), 4) for one in found[0][1].values())
    assert all(not one[2].any() for one in found[1][1].values()), "nothing was read in an empty row"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_state_is_held_to_the_bit_in_every_precision(kind: CellType, dtype: torch.dtype) -> None:
    """A thousand empty slots after the last token change nothing."""
    cell = made(kind, 2, True, dtype)
    x = torch.randn(2, 1004, 3).to(dtype)
    real = (torch.arange(1004) < 4).expand(2, -1)
    long, short = run_cell_static(cell, x, real)[1], run_cell_static(cell, x[:, :4], real[:, :4])[1]
    assert all(torch.equal(long[name], short[name]) for name in short)


def test_dropout_between_layers_only_while_learning() -> None:
    config = SimpleNamespace(cell="lstm", d_hidden=4, n_layers=2, dropout=0.9)
    cell, real = make_cell(config, 3), torch.ones(1, 6).bool()
    x = torch.randn(1, 6, 3)
    assert not torch.equal(run_cell_static(cell, x, real)[0], run_cell_static(cell, x, real)[0])
    cell.eval()
    assert torch.equal(run_cell_static(cell, x, real)[0], run_cell_static(cell, x, real)[0])


def test_rows_that_did_not_move_keep_what_they_had() -> None:
    new: RNNState = {"hidden": torch.ones(2, 1, 3), "fed": torch.ones(2, 3)}
    kept = update_moved_rows(torch.tensor([True, False]), new, {"hidden": torch.full((2, 1, 3), 7.0)})
    assert kept["hidden"][:, 0, 0].tolist() == [1.0, 7.0] and kept["fed"][:, 0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("both", [False, True])
def test_dropout_between_layers_is_drawn_from_the_usual_generator(
    kind: type[nn.RNNBase], both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = kind(5, 7, 3, batch_first=True, dropout=0.4, bidirectional=both).train()
    x = torch.randn(4, 6, 5)
    torch.manual_seed(1)
    expected, ends = cell(x)
    torch.manual_seed(1)
    monkeypatch.setattr(cell, "forward", None)  # which on a GPU would draw from cuDNN's generator
    found, after = run_cell(cell, x, {})
    assert torch.equal(found, expected)
    for name, end in zip(("hidden", "cell"), ends if isinstance(ends, tuple) else (ends,), strict=False):
        assert torch.equal(after[name].transpose(0, 1), end)
    again, _ = run_cell(cell, x, after)
    assert not torch.equal(again, found)
