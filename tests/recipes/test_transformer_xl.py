"""Segment recurrence against a version that recomputes the whole history, with no gradient through it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from tests.batches import build

SEGMENTS = (5, 3, 4, 6)
SMALL = {"n_layers": 3, "d_model": 12, "n_heads": 2, "d_head": 4, "d_hidden": 10, "vocab_size": 40}


def _sinusoid(distance: int, width: int) -> Tensor:
    angles = [distance / 10_000 ** (2 * i / width) for i in range(width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def _attend(part: Any, xl: Any, x: Tensor, past: Tensor) -> Tensor:
    """Equation (d) of §3.3, pair by pair: x [T, d] looks at past [M, d] and at itself."""
    heads, width = part.config.n_heads, part.config.d_head
    seen = torch.cat([past, x])
    weight = {role: part.qkv.weight[part.qkv.slice(role)] for role in ("query", "key", "value")}
    query = (x @ weight["query"].T).view(len(x), heads, width)
    key, value = ((seen @ weight[role].T).view(len(seen), heads, width) for role in ("key", "value"))
    rows = []
    for i in range(len(x)):
        mixed = []
        for h in range(heads):
            scores = []
            for j in range(len(past) + i + 1):
                place = (xl.weight @ _sinusoid(len(past) + i - j, x.shape[1])).view(heads, width)[h]
                content = (query[i, h] + xl.content[h, 0]) @ key[j, h]
                scores.append((content + (query[i, h] + xl.place[h, 0]) @ place) / math.sqrt(width))
            chance = torch.stack(scores).exp()
            mixed.append((chance / chance.sum()) @ value[: len(scores), h])
        rows.append(torch.cat(mixed))
    return torch.stack(rows) @ part.out.weight.T


def _layer(block: Any, xl: Any, x: Tensor, past: Tensor) -> Tensor:
    sublayer, feedforward = block.sublayers["self"], block.sublayers["feedforward"]
    attention = sublayer.part.attention
    if sublayer.order == "post":
        x = sublayer.norm(x + _attend(attention, xl, x, past))
        return feedforward.norm(x + feedforward.part(x))
    norm = sublayer.norm
    x = x + _attend(attention, xl, norm(x), norm(past) if len(past) else past)
    return x + feedforward.part(feedforward.norm(x))


def brute(model: af.Model, segments: list[Tensor]) -> Tensor:
    """Logits of the last segment; everything before it is computed from the beginning, without gradient."""
    stack: Any = model.stages["decoder"].stack
    words, mem_len = model.stages["decoder"].inputs.words.weight, model.config.mem_len
    history = [torch.zeros(0, words.shape[1], dtype=torch.float64)] * len(stack.blocks)
    for number, segment in enumerate(segments):
        with torch.set_grad_enabled(number == len(segments) - 1):
            x = words[segment] * math.sqrt(words.shape[1])
            grown = []
            for block, xl, before in zip(stack.blocks, stack.block_positions, history, strict=True):
                grown.append(torch.cat([before, x]))
                x = _layer(block, xl, x, before[max(0, len(before) - mem_len) :])
        history = [h.detach() for h in grown]
    return x @ words.T + model.heads["language"].bias


@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("mem_len", [0, 4, 7, 50])
def test_equals_the_whole_history_recomputed(order: str, mem_len: int) -> None:
    """Logits and the gradient of every parameter, segment after segment, with memories short and long."""
    model = build("transformer-xl-tiny", **SMALL, norm_order=order, mem_len=mem_len)
    segments = list(torch.randint(0, 40, (sum(SEGMENTS),)).split(SEGMENTS))
    state = None
    for n in range(1, len(segments) + 1):
        given = {"use_cache": True} if state is None else {"past_key_values": state}
        out = model(input_ids=segments[n - 1][None], **given)
        state = out.past_key_values
        expected = brute(model, segments[:n])
        torch.testing.assert_close(out.logits[0], expected, rtol=0, atol=1e-9)
        target = torch.randint(0, 40, (SEGMENTS[n - 1],))
        losses = [F.cross_entropy(logits, target) for logits in (out.logits[0], expected)]
        ours, theirs = (
            torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
            for loss in losses
        )
        if order == "pre" and n > 1:  # there the memory holds normalized inputs, so their norm is the past's too
            continue
        for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=name)


def test_no_gradient_reaches_the_last_segment() -> None:
    """The word vectors that only the first segment read get nothing from the second one's loss."""
    model = build("transformer-xl-tiny", tied=False)
    state = model(input_ids=torch.tensor([[1, 2, 3, 4]]), use_cache=True).past_key_values
    out = model(input_ids=torch.tensor([[5, 6, 7]]), past_key_values=state)
    changed = model(input_ids=torch.tensor([[5, 6, 7]]))
    assert not torch.allclose(out.logits, changed.logits)  # it is read
    out.logits.square().sum().backward()
    grad = model.stages["decoder"].inputs.words.weight.grad
    assert bool((grad[1:5] == 0).all()) and bool((grad[5:8] != 0).any())


def test_memory_is_bounded() -> None:
    """After any number of segments every layer remembers mem_len tokens, and what is older changes nothing."""
    model = build("transformer-xl-tiny", n_layers=1, mem_len=6)
    texts = torch.randint(1, 250, (2, 20))
    texts[1, 14:] = texts[0, 14:]
    with torch.no_grad():
        state = model(input_ids=texts[:, :20], use_cache=True).past_key_values
        assert all(layer["past"].shape[1] == 6 for layer in state.layers.values())
        a, b = model(input_ids=torch.tensor([[9], [9]]), past_key_values=state).logits
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_layers_have_maps_of_their_own_and_biases_in_common() -> None:
    model = af.build("transformer-xl-tiny").eval()
    first, second = model.stages["decoder"].stack.block_positions
    assert first.content is second.content and first.place is second.place
    assert first.weight is not second.weight
    apart = af.build("transformer-xl-tiny", shared_biases=False).stages["decoder"].stack.block_positions
    assert apart[0].content is not apart[1].content
