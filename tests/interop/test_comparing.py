"""What hands our answers to transformers' own tests sees when one is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from anyformer.forward_context import Output

MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
X = torch.arange(12.0).reshape(2, 3, 2)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the other process imports by its short names."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "child"))
    yield
    for name in ("answering", "comparing", "departures"):
        sys.modules.pop(name, None)


@pytest.fixture
def compare(child: None) -> Any:
    import comparing

    def hand_over(ours: Any, theirs: Any) -> Any:
        batch = {"attention_mask": MASK, "pair": False}
        return comparing.Comparison("call", batch, numbers=True).hand_over(ours, theirs)

    return hand_over


def test_holes_in_a_mask_are_closed_row_by_row(child: None) -> None:
    """A test that asks about a row alone must be asked the same question as about the batch."""
    from answering import closed

    masks = torch.randint(0, 2, (200, 7))
    whole = closed(masks)
    assert all(torch.equal(whole[i : i + 1], closed(masks[i : i + 1])) for i in range(len(masks)))
    assert bool(whole.any(dim=1).all()) and bool(((whole[:, 1:] != whole[:, :-1]).sum(dim=1) <= 1).all())


def test_ours_comes_back_in_their_class(compare: Any) -> None:
    ours = X.masked_fill(MASK[..., None] == 0, 0)  # padding means nothing
    handed = compare(Output(last_hidden_state=ours), BaseModelOutput(last_hidden_state=X))
    assert type(handed) is BaseModelOutput and handed.last_hidden_state is ours


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (Output(last_hidden_state=X + 0.01), "off by"),
        (Output(last_hidden_state=X[:, :2]), "instead of"),
        (Output(last_hidden_state=X.double()), "float64"),
        (Output(hidden_states=(X,)), "fields"),
        (Output(hidden_states=(X,), last_hidden_state=X), "fields"),
        (Output(last_hidden_state=X, hidden_states=(X, X)), "2 items instead of 1"),
    ],
    ids=["numbers", "shape", "type", "missing", "order", "length"],
)
def test_another_answer_is_a_failure(compare: Any, ours: Output, message: str) -> None:
    theirs = BaseModelOutput(last_hidden_state=X, hidden_states=(X,))
    ours = ours if len(ours) > 1 or "hidden_states" in ours else Output({**ours, "hidden_states": (X,)})
    with pytest.raises(AssertionError, match=message):
        compare(ours, theirs)
