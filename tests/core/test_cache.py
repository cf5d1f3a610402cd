"""What decoding remembers: appended, reordered, forgotten, copied and cut off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.core.cache import GROW_BY, Cache, SelfAttentionCache
from anyformer.core.tokens import Tokens
from anyformer.generation.cache_marks import clone, rewind, set_mark, truncate


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _filled(length: int = 5, batch: int = 3) -> tuple[Cache, Tensor, Tensor]:
    """A state with one self-attention, one cross-attention, a mask and an encoder's tokens."""
    state = Cache()
    key, value = _normal(batch, 2, length, 4), _normal(batch, 2, length, 6, seed=1)
    state.self_attention("self").append(key, value)
    fixed = state.cross_attention("cross")
    fixed.key, fixed.value = _normal(batch, 2, 7, 4, seed=2), _normal(batch, 2, 7, 6, seed=3)
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, 0] = False
    state.advance(mask, batch, length, key.device)
    memory = torch.arange(batch).view(batch, 1, 1).expand(batch, 7, 2).float()
    state.encoder_tokens["encoder"] = Tokens(memory, memory[..., 0] >= 1)
    return state, key, value


@pytest.mark.parametrize("grad", [False, True], ids=["buffers", "graph"])
def test_append_gives_everything_so_far(grad: bool) -> None:
    """Whatever the pieces, past the first growth too, the memory is their concatenation."""
    memory, keys, values = SelfAttentionCache(), [], []
    for step, n in enumerate([3, 1, 1, GROW_BY, 1, 2 * GROW_BY, 1]):
        key, value = _normal(2, 1, n, 4, seed=step), _normal(2, 1, n, 3, seed=100 + step)
        keys.append(key.requires_grad_(grad))
        values.append(value.requires_grad_(grad))
        got = memory.append(keys[-1], values[-1])
        assert torch.equal(got[0], torch.cat(keys, dim=2))
        assert torch.equal(got[1], torch.cat(values, dim=2))
        assert memory.length == got[0].shape[2]


def test_appending_one_token_copies_no_past() -> None:
    """Buffers grow in blocks: a step inside a block writes in place."""
    memory = SelfAttentionCache()
    memory.append(_normal(1, 1, 3, 4), _normal(1, 1, 3, 4))
    before = memory.key
    memory.append(_normal(1, 1, 1, 4), _normal(1, 1, 1, 4))
    assert memory.key is before


def test_gradient_flows_through_the_past() -> None:
    """A loss at a later step reaches the keys of an earlier one, unless the state was detached between them."""
    for cut in (False, True):
        state = Cache()
        first = _normal(1, 1, 2, 4).requires_grad_()
        later = _normal(1, 1, 1, 4, seed=1).requires_grad_()
        state.self_attention("self").append(first * 2, first * 3)
        if cut:
            state.detach()
        key, value = state.self_attention("self").append(later * 5, later)
        (key.sum() + value.sum()).backward()
        assert torch.equal(later.grad, torch.full_like(later, 6.0))
        assert (first.grad is None) if cut else torch.equal(first.grad, torch.full_like(first, 5.0))


def test_select_reorders_and_repeats_rows() -> None:
    """Beam search keeps, drops and doubles hypotheses: every memory, the mask and the encoder's tokens follow."""
    state, key, value = _filled()
    real, fixed, encoder = state.real, state.cross_attention("cross").key, state.encoder_tokens["encoder"]
    rows = torch.tensor([2, 0, 0, 1])
    state.reorder(rows)
    got = state.self_attention("self").append(_normal(4, 2, 1, 4, seed=9), _normal(4, 2, 1, 6, seed=9))
    assert torch.equal(got[0][:, :, :5], key[rows])
    assert torch.equal(got[1][:, :, :5], value[rows])
    assert torch.equal(state.cross_attention("cross").key, fixed[rows])
    assert torch.equal(state.real, real[rows])
    assert torch.equal(state.encoder_tokens["encoder"].x, encoder.x[rows])
    assert torch.equal(state.encoder_tokens["encoder"].mask, encoder.mask[rows])


def test_repeated_rows_go_their_own_ways() -> None:
    """Two copies of a row do not share memory: what one appends the other does not see."""
    state, key, _ = _filled(batch=1)
    state.reorder(torch.tensor([0, 0]))
    new = _normal(2, 2, 1, 4, seed=7)
    got, _ = state.self_attention("self").append(new, _normal(2, 2, 1, 6))
    assert torch.equal(got[:, :, -1:], new)
    assert torch.equal(got[:, :, :-1], key.expand(2, -1, -1, -1))


@pytest.mark.parametrize("grad", [False, True], ids=["buffers", "graph"])
def test_rewind_forgets_what_came_after_the_mark(grad: bool) -> None:
    """After a rewind the state goes on as if the rejected tokens had never come (speculative decoding)."""
    state, key, _ = _filled()
    mark = set_mark(state)
    fixed = state.cross_attention("cross").key
    wrong = _normal(3, 2, 4, 4, seed=5)
    state.self_attention("self").append(wrong.requires_grad_(grad), _normal(3, 2, 4, 6, seed=5).requires_grad_(grad))
    state.advance(torch.zeros(3, 4, dtype=torch.bool), 3, 4, key.device)
    assert state.length == 9
    rewind(state, mark)
    assert state.length == 5
    assert state.real.shape == (3, 5)
    new = _normal(3, 2, 1, 4, seed=6).requires_grad_(grad)
    got, _ = state.self_attention("self").append(new, _normal(3, 2, 1, 6, seed=6).requires_grad_(grad))
    assert torch.equal(got, torch.cat([key, new], dim=2))
    assert torch.equal(state.cross_attention("cross").key, fixed)


def test_a_fork_is_independent() -> None:
    """A copy and its original go their own ways: neither sees what the other appends, selects or encodes."""
    state, key, value = _filled()
    other = clone(state)
    mine, theirs = _normal(3, 2, 1, 4, seed=1), _normal(3, 2, 1, 4, seed=2)
    a, _ = state.self_attention("self").append(mine, value[:, :, :1])
    b, _ = other.self_attention("self").append(theirs, value[:, :, :1])
    assert torch.equal(a, torch.cat([key, mine], dim=2))
    assert torch.equal(b, torch.cat([key, theirs], dim=2))
    other.advance(None, 3, 1, key.device)
    other.encoder_tokens["second"] = Tokens(_normal(3, 1, 2))
    other.reorder(torch.tensor([0]))
    assert (state.length, other.length) == (5, 6)
    assert state.real.shape == (3, 5)
    assert state.cross_attention("cross").key.shape[0] == 3
    assert set(state.encoder_tokens) == {"encoder"}
    assert state.encoder_tokens["encoder"].x.shape[0] == 3


def test_a_fork_of_an_empty_state_learns_nothing_from_its_twin() -> None:
    """What one encodes after the fork is not taken for the other's encoder output."""
    state = Cache()
    other = clone(state)
    other.encoder_tokens["encoder"] = Tokens(_normal(1, 2, 3))
    other.self_attention("self").append(_normal(1, 1, 1, 2), _normal(1, 1, 1, 2))
    assert not state.encoder_tokens
    assert not state.layers


def test_advance_notes_which_tokens_are_real() -> None:
    """No mask is kept while all are real; the first padded token makes one for the whole past."""
    state, device = Cache(), torch.device("cpu")
    state.advance(None, 2, 3, device)
    assert state.real is None
    now = torch.tensor([[True], [False]])
    state.advance(now, 2, 1, device)
    state.advance(None, 2, 2, device)
    assert state.length == 6
    assert state.real.tolist() == [[True] * 6, [True, True, True, False, True, True]]


def _recurrent() -> Cache:
    state = Cache()
    state.recurrent("cell").update(hidden=_normal(3, 2, 4), cell=_normal(3, 2, 4, seed=1))
    state.advance(None, 3, 1, torch.device("cpu"))
    return state


def test_a_recurrence_comes_back_to_its_mark() -> None:
    """It cannot be cut back, so the mark has a copy, which follows the rows when they change places."""
    state = _recurrent()
    hidden, mark = state.recurrent("cell")["hidden"], set_mark(state)
    rows = torch.tensor([2, 2, 0])
    for seed in (5, 6):  # a mark serves more than once
        state.recurrent("cell")["hidden"] = _normal(3, 2, 4, seed=seed)
        state.recurrent("late")["window"] = _normal(3, 1, 4)
        state.advance(None, 3, 1, torch.device("cpu"))
        rewind(state, mark)
        assert torch.equal(state.recurrent("cell")["hidden"], hidden)
        assert not state.recurrent("late") and state.length == 1
    state.recurrent("cell")["hidden"] = _normal(3, 2, 4, seed=7)
    state.reorder(rows)
    rewind(state, mark)
    assert torch.equal(state.recurrent("cell")["hidden"], hidden[rows])


def test_a_mark_that_nobody_keeps_costs_nothing() -> None:
    state = _recurrent()
    for _ in range(5):
        set_mark(state)
    assert len(state.marks) == 0


def test_recurrent_memories_are_detached_and_forked() -> None:
    state = _recurrent()
    state.recurrent("cell")["hidden"] = (_normal(3, 2, 4).requires_grad_() * 2).clone()
    other = clone(state)
    state.detach()
    assert not state.recurrent("cell")["hidden"].requires_grad and other.recurrent("cell")["hidden"].requires_grad
    other.recurrent("cell")["hidden"] = _normal(3, 2, 4, seed=9)
    assert torch.equal(state.recurrent("cell")["hidden"], _normal(3, 2, 4) * 2)


def test_rows_that_stay_are_not_copied() -> None:
    """Only rows that continue another one are written, whatever the order in which they take from each other."""
    for rows in ([0, 1, 2], [1, 0, 2], [2, 2, 0], [1, 2, 0]):
        state, key, value = _filled()
        buffer = state.self_attention("self").key
        state.reorder(torch.tensor(rows))
        assert state.self_attention("self").key is buffer
        got = state.self_attention("self").append(_normal(3, 2, 1, 4), _normal(3, 2, 1, 6))
        assert torch.equal(got[0][:, :, :5], key[rows])
        assert torch.equal(got[1][:, :, :5], value[rows])


def test_beams_share_what_the_encoder_made() -> None:
    state, key, _ = _filled()
    fixed, encoder = state.cross_attention("cross").key, state.encoder_tokens["encoder"]
    state.reorder(torch.tensor([0, 0, 1, 1, 2, 2]), memory=False)
    assert state.cross_attention("cross").key is fixed and state.encoder_tokens["encoder"] is encoder
    assert torch.equal(state.self_attention("self").append(*[_normal(6, 2, 1, d) for d in (4, 6)])[0][1, :, :5], key[0])
    assert state.real.shape == (6, 5)


def _step(state: Cache, span: int, mask: Tensor | None, n: int, at: int) -> Tensor:
    """One pass of n tokens whose keys are their own numbers; gives the keys that the last of them could see."""
    state.advance(mask, 2, n, torch.device("cpu"))
    key = torch.arange(at, at + n, dtype=torch.float32).view(1, 1, n, 1).expand(2, 1, n, 1)
    return state.self_attention("self", span).append(key, key)[0][0, 0, :, 0]


@pytest.mark.parametrize("prompt", [1, 700])
def test_a_window_keeps_only_the_window(prompt: int) -> None:
    state, span = Cache(), 100
    seen = _step(state, span, None, prompt, 0)
    assert len(seen) == prompt  # every query of a prompt has a window of its own
    for at in range(prompt, prompt + 500):
        seen = _step(state, span, None, 1, at)
        assert seen.tolist() == list(range(at + 1 - len(seen), at + 1))
        assert min(at, span) < len(seen) <= span + GROW_BY + 1
    buffer = state.self_attention("self").key
    assert buffer.shape[2] <= span + 3 * GROW_BY
    assert state.length == prompt + 500


def test_a_window_keeps_what_padding_pushed_away_and_what_a_mark_needs() -> None:
    """Slots of padding are no distance: a row with 300 of them still has the tokens before."""
    state, span = Cache(), 50
    mask = torch.ones(2, 400, dtype=torch.bool)
    mask[1, 60:360] = False  # 100 real tokens: 60, then 40 after the hole
    _step(state, span, mask, 400, 0)
    seen = _step(state, span, None, 1, 400)
    assert seen[0] == 50  # the 50 last real ones of row 1 before slot 400 begin at slot 50
    marked = set_mark(state)
    for at in range(401, 600):
        seen = _step(state, span, None, 1, at)
    assert seen[0] <= 401 - span
    rewind(state, marked)
    assert _step(state, span, None, 1, 401).tolist()[-span:] == list(range(352, 402))


def test_shorten_cuts_keys_and_refuses_a_recurrence() -> None:
    """What is appended afterwards stands right behind what was kept."""
    state, key, _ = _filled(length=5)
    assert truncate(state, 3) and state.length == 3
    assert state.real is not None and state.real.shape == (3, 3)
    new = _normal(3, 2, 1, 4, seed=9)
    keys, _ = state.self_attention("self").append(new, _normal(3, 2, 1, 6, seed=10))
    assert torch.equal(keys, torch.cat([key[:, :, :3], new], dim=2))
    state.recurrent("cell")["hidden"] = _normal(3, 1, 4)
    assert not truncate(state, 2) and state.length == 3
