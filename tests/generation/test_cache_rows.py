"""Rows come and go while others stay: every row keeps what it read, in order, and dead columns do not pile up."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from anyformer.core.cache import PAST, Cache
from anyformer.core.tokens import Tokens
from anyformer.generation.cache_rows import compact, evict_rows, insert_rows

CPU = torch.device("cpu")
SPAN = 5


def _append(state: Cache, numbers: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """One pass of tokens [B, n] whose keys are their own numbers; gives what the layers hold then, [B, held]."""
    state.advance(mask, *numbers.shape, CPU)
    key = numbers.float().view(numbers.shape[0], 1, -1, 1)
    full, _ = state.self_attention("full").append(key, -key)
    window, value = state.self_attention("window", SPAN).append(key, -key)
    assert torch.equal(value, -window)
    state.recurrent("cell")["hidden"] = numbers[:, -1:].float()
    past = state.recurrent("recall").get(PAST, key[:, 0, :0])
    state.recurrent("recall")[PAST] = torch.cat([past, key[:, 0]], dim=1)[:, -SPAN:]
    return {"full": full[:, 0, :, 0], "window": window[:, 0, :, 0], "recall": state.recurrent("recall")[PAST][..., 0]}


def _left_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[999] * (longest - len(row)) + row for row in rows])
    return ids, torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])


def _read(rows: list[list[int]]) -> Cache:
    state = Cache()
    _append(state, *_left_padded(rows))
    return state


def test_a_shorter_row_ends_where_the_others_do() -> None:
    state = _read([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
    insert_rows(state, torch.tensor([1]), _read([[21, 22]]))
    held = _append(state, torch.tensor([[0], [0], [0]]))
    assert state.length == 5 and state.real[1].tolist() == [False, False, True, True, True]
    assert held["full"][1, 2:].tolist() == [21, 22, 0]
    assert held["full"][[0, 2]].tolist() == [[1, 2, 3, 4, 0], [9, 10, 11, 12, 0]]


def test_for_a_longer_row_columns_are_added_on_the_left() -> None:
    state = _read([[1, 2], [3, 4]])
    insert_rows(state, torch.tensor([0]), _read([[11, 12, 13, 14, 15, 16, 17]]))
    held = _append(state, torch.tensor([[0], [0]]))
    assert state.length == 8
    assert held["full"][0].tolist() == [11, 12, 13, 14, 15, 16, 17, 0]
    assert held["full"][1, -3:].tolist() == [3, 4, 0]
    assert state.real[1].tolist() == [False] * 5 + [True] * 3
    assert held["window"][0].tolist() == [13, 14, 15, 16, 17, 0]  # the window alone is kept of the new row


def test_columns_that_no_row_needs_go() -> None:
    state = _read([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
    insert_rows(state, torch.tensor([0]), _read([[21, 22]]))
    compact(state, spare=1)
    assert state.length == 6  # the second row has them all
    insert_rows(state, torch.tensor([1]), _read([[31, 32, 33]]))
    compact(state, spare=4)
    assert state.length == 6  # three of them are not worth the move
    compact(state, spare=3)
    assert state.length == 3 and state.real.tolist() == [[False, True, True], [True, True, True]]
    held = _append(state, torch.tensor([[0], [0]]))
    assert held["full"][0, 1:].tolist() == [21, 22, 0] and held["full"][1].tolist() == [31, 32, 33, 0]
    assert held["recall"].shape[1] == 4


def test_a_released_row_is_empty() -> None:
    state = _read([[1, 2, 3], [4, 5, 6]])
    state.encoder_tokens["encoder"] = Tokens(torch.ones(2, 3, 1), torch.ones(2, 3, dtype=torch.bool))
    evict_rows(state, torch.tensor([0]))
    assert state.real.tolist() == [[False] * 3, [True] * 3]
    assert state.recurrent("cell")["hidden"].tolist() == [[0], [6]]
    assert state.encoder_tokens["encoder"].mask.tolist() == [[False] * 3, [True] * 3]


def _with_source(rows: list[int], mask: Tensor | None = None) -> Cache:
    """Each row's source is so many tokens, all of them its own length; the second layer's keys are negative."""
    state = _read([[1] for _ in rows])
    x = torch.tensor(rows).view(-1, 1, 1).expand(-1, max(rows), 2).float()
    real = torch.arange(max(rows)) < torch.tensor(rows)[:, None]
    state.encoder_tokens["encoder"] = Tokens(
        x, None if bool(real.all()) else real, pos_embed=x[:1, :, :1], summary=x[:, :1]
    )
    fixed = state.cross_attention("cross")
    fixed.key, fixed.value = x[:, None].clone(), -x[:, None]
    return state


def test_sources_of_other_lengths_come_and_go() -> None:
    """The memory is as wide as the longest source of a row that is there."""
    state = _with_source([3, 3])
    assert state.encoder_tokens["encoder"].mask is None
    insert_rows(state, torch.tensor([0]), _with_source([5]))
    encoder, fixed = state.encoder_tokens["encoder"], state.cross_attention("cross")
    assert encoder.mask.sum(dim=1).tolist() == [5, 3]
    assert encoder.x[0, :, 0].tolist() == [5] * 5 and encoder.x[1, :3, 0].tolist() == [3] * 3
    assert encoder.pos_embed.shape == (2, 5, 1) and encoder.summary[:, 0, 0].tolist() == [5, 3]
    assert fixed.key.shape[2] == fixed.value.shape[2] == 5
    insert_rows(state, torch.tensor([0]), _with_source([2]))
    encoder, fixed = state.encoder_tokens["encoder"], state.cross_attention("cross")
    assert encoder.mask.tolist() == [[True, True, False], [True] * 3]
    assert fixed.key[0, 0, :2, 0].tolist() == [2, 2] and fixed.value[1, 0, :, 0].tolist() == [-3] * 3


def test_sources_of_one_length_need_no_mask() -> None:
    state = _with_source([3, 3])
    insert_rows(state, torch.tensor([1]), _with_source([3]))
    assert state.encoder_tokens["encoder"].mask is None


def test_any_order_of_events_leaves_each_row_what_it_read() -> None:
    """A list a row is the reference: what is real in the state is that list, whatever came and went around it."""
    chance = random.Random(0)
    lists = [[chance.randrange(1000) for _ in range(chance.randrange(1, 9))] for _ in range(4)]
    state, widest = _read(lists), 0
    for _ in range(600):
        event = chance.random()
        if event < 0.25:
            rows = sorted(chance.sample(range(4), chance.randrange(1, 4)))
            new = [[chance.randrange(1000) for _ in range(chance.randrange(1, 30))] for _ in rows]
            insert_rows(state, torch.tensor(rows), _read(new))
            for row, numbers in zip(rows, new, strict=True):
                lists[row] = numbers
        elif event < 0.35:
            row = chance.randrange(4)
            evict_rows(state, torch.tensor([row]))
            lists[row] = []
        elif event < 0.5:
            compact(state, spare=chance.choice([1, 8]))
        numbers = [chance.randrange(1000) for _ in range(4)]
        lists = [[*row, number] for row, number in zip(lists, numbers, strict=True)]
        held = _append(state, torch.tensor(numbers)[:, None])
        assert state.length == state.real.shape[1]
        for row, expected in enumerate(lists):
            real = state.real[row]
            for name, span in (("full", len(expected)), ("window", SPAN), ("recall", SPAN)):
                found = held[name][row]
                assert found[real[len(real) - len(found) :]].tolist()[-span:] == expected[-span:], name
        assert state.recurrent("cell")["hidden"][:, 0].tolist() == numbers
        widest = max(widest, held["window"].shape[1])
    assert widest < 200  # the window forgets on, whatever is admitted
