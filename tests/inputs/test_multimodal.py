"""Images among words: where they stand, who sees whom, and what is said when the parts do not fit together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.inputs.multimodal import run_numbers, scatter_rows

SIZE, PLACE = 17, 255  # tokens that an image of metalm-tiny makes, and the id that keeps a place for one


@pytest.fixture
def model() -> af.Model:
    torch.manual_seed(0)
    return af.build("metalm-tiny").eval().double()


def pictures(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(n)).double()


def mixed() -> Tensor:
    """Words, an image, words, another image, words."""
    place = [PLACE] * SIZE
    return torch.tensor([[10, 11, *place, 12, 13, *place, 14, 15]])


def test_runs() -> None:
    marks = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 1, 1]]).bool()
    assert run_numbers(marks).tolist() == [[-1, 0, 0, -1, 1], [0, -1, -1, 1, 1]]


def test_vectors_stand_at_their_places(model: af.Model) -> None:
    """The decoder reads words where words are, and the connector's vectors of each image in order elsewhere."""
    pixels, ids = pictures(2), mixed()
    with torch.no_grad(), af.look(model, "decoder.input", "picture.output") as seen:
        model(input_ids=ids, pixel_values=pixels)
    inputs = model.stages["decoder"].inputs
    soft = inputs.connect["picture"](seen["picture.output"])
    expected = inputs.words.weight[ids[0]].clone()
    expected[2 : 2 + SIZE], expected[4 + SIZE : 4 + 2 * SIZE] = soft[0], soft[1]
    expected = expected + inputs.text.positions.weight[: ids.shape[1]]
    torch.testing.assert_close(seen["decoder.input"][0], expected)


def test_who_sees_whom(model: af.Model) -> None:
    """Each image both ways, a question if it is marked, and all else causal."""
    ids = mixed()
    both = torch.zeros_like(ids)
    both[0, :2] = 1  # the words before the first image join it
    length = ids.shape[1]
    with torch.no_grad(), af.look(model, "decoder.blocks.0.self.weights") as seen:
        model(input_ids=ids, pixel_values=pictures(2), both_ways=both)
    allowed = seen["decoder.blocks.0.self.weights"][0].sum(dim=0) > 0
    first, second = range(2 + SIZE), range(4 + SIZE, 4 + 2 * SIZE)
    for q in range(length):
        for k in range(length):
            together = (q in first and k in first) or (q in second and k in second)
            assert bool(allowed[q, k]) == (k <= q or together), (q, k)


def test_a_later_picture_changes_nothing_before_it(model: af.Model) -> None:
    one, other = pictures(2), pictures(2)
    other[1] = 0
    with torch.no_grad():
        a, b = (model(input_ids=mixed(), pixel_values=x).logits for x in (one, other))
    before = 4 + SIZE
    torch.testing.assert_close(a[:, :before], b[:, :before])
    assert not torch.allclose(a[:, before:], b[:, before:])


def test_writing_with_its_memory_as_without(model: af.Model) -> None:
    """A prompt with images among words, padded, continued: each new word is what the whole text would say next."""
    prompt, mask = mixed(), torch.ones_like(mixed())
    left = torch.cat([torch.zeros_like(prompt[:, :3]), prompt], dim=1)
    padded = {"input_ids": left, "attention_mask": (left != 0).long()}
    options: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": None, "suppress_tokens": [PLACE]}
    found = model.generate(input_ids=prompt, attention_mask=mask, pixel_values=pictures(2), **options)
    again = model.generate(**padded, pixel_values=pictures(2), **options)
    assert again[:, 3:].tolist() == found.tolist()
    with torch.no_grad():
        logits = model(input_ids=found[:, :-1], pixel_values=pictures(2)).logits[:, prompt.shape[1] - 1 :]
    logits[..., PLACE] = float("-inf")
    assert logits.argmax(dim=-1).tolist() == found[:, prompt.shape[1] :].tolist()


def test_text_alone_is_the_language_model(model: af.Model) -> None:
    ids = torch.tensor([[10, 11, 12]])
    with torch.no_grad():
        whole, part = model(input_ids=ids).logits, model(input_ids=ids[:, :2]).logits
    torch.testing.assert_close(whole[:, :2], part)


def test_parts_that_do_not_fit(model: af.Model) -> None:
    with pytest.raises(af.InputError, match=r"\[34\] .* picture, but 1 "):
        model(input_ids=mixed(), pixel_values=pictures(1))
    with pytest.raises(af.InputError, match="picture, but none"):
        model(input_ids=mixed())
    with pytest.raises(af.InputError, match="both_ways has shape"):
        model(input_ids=mixed(), pixel_values=pictures(2), both_ways=torch.ones(1, 3))
    with pytest.raises(af.ConfigError, match="token"):
        af.build("metalm-tiny", encoders={"picture": {"encoder": {"family": "vit"}}})
    with pytest.raises(af.ConfigError, match="language head"):
        af.build("metalm-tiny", decoder={"family": "vit"})


def test_vectors_are_put_where_they_belong() -> None:
    """As masked_scatter does it, and with its gradients."""
    torch.manual_seed(0)
    here = torch.tensor([[False, True, True, False], [True, False, False, False], [False, False, False, False]])
    ways = []
    for way in (scatter_rows, lambda vectors, here, made: vectors.masked_scatter(here.unsqueeze(-1), made)):
        torch.manual_seed(1)
        vectors, made = torch.randn(3, 4, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
        out = way(vectors, here, made)
        ways.append(
            (out.detach(), *torch.autograd.grad((out * torch.arange(60.0).view(3, 4, 5)).sum(), (vectors, made)))
        )
    for ours, theirs in zip(*ways, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert scatter_rows(ways[0][0], here & False, torch.zeros(0, 5)) is ways[0][0]
