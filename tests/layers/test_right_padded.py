"""Rows with their real tokens first: found by looking at the mask, or, in a step that is recorded, without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.host import no_host_sync
from anyformer.core.tokens import Tokens
from anyformer.fast.host_sync import detect_host_syncs
from anyformer.layers.right_padded import RightPadded

MASKS = {
    "right": [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]],
    "left": [[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]],
    "between": [[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 1]],
    "nothing": [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]],
}


def both(mask: list[list[int]]) -> tuple[Tensor, Tensor, RightPadded, RightPadded]:
    real, x = torch.tensor(mask, dtype=torch.bool), torch.randn(3, 4, 5)
    seen = RightPadded.from_tokens(Tokens(x, real))
    with no_host_sync(), detect_host_syncs(torch.device("cpu")) as found:
        blind = RightPadded.from_tokens(Tokens(x, real))
    assert not found and not blind.full and not seen.full
    return real, x, seen, blind


@pytest.mark.parametrize("kind", MASKS)
def test_without_looking_they_are_the_same(kind: str) -> None:
    """But that they keep their length, where those that were looked at are as long as the longest."""
    real, x, seen, blind = both(MASKS[kind])
    n = seen.x.shape[1]
    assert torch.equal(seen.x, blind.x[:, :n]) and not blind.x[:, n:].any()
    assert torch.equal(seen.sizes, blind.sizes) and torch.equal(blind.sizes, real.sum(dim=1))
    assert seen.real is not None and blind.real is not None and torch.equal(seen.real, blind.real[:, :n])
    assert torch.equal(blind.restore(blind.x), x * real.unsqueeze(-1)) and torch.equal(
        seen.restore(seen.x), blind.restore(blind.x)
    )
    assert torch.equal(seen.reverse(seen.x), blind.reverse(blind.x)[:, :n])
    past = torch.randn(3, 2, 5)
    assert torch.equal(seen.extend(past)[1], blind.extend(past)[1])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("recipe", ["bahdanau", "luong", "sutskever", "bytenet", "convs2s"])
def test_models_that_read_in_order_learn_the_same_without_looking(recipe: str, side: str) -> None:
    model = af.build(f"{recipe}-tiny").eval()  # no noise
    ids, labels = torch.randint(3, 20, (3, 4)), torch.randint(3, 20, (3, 4))
    mask = torch.tensor(MASKS[side])
    given = {"input_ids": ids, "attention_mask": mask, "decoder_attention_mask": torch.tensor(MASKS["right"])}
    found = []
    for blind in (False, True):
        model.zero_grad()
        if blind:
            with no_host_sync():
                out = model(**given, decoder_input_ids=labels).logits
        else:
            out = model(**given, decoder_input_ids=labels).logits
        real = out[torch.tensor(MASKS["right"], dtype=torch.bool)]
        real.pow(2).sum().backward()
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append((real.detach(), grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_decoder_that_listens_step_by_step_can_be_recorded() -> None:
    """Show, Attend and Tell: nothing in a step looks at values."""
    model = af.build("show-attend-tell-tiny").train()
    pixels = torch.randn(2, 3, *model.config.to_json()["image_size"])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with no_host_sync(), detect_host_syncs(torch.device("cpu")) as found:
        out = model(pixel_values=pixels, decoder_input_ids=torch.randint(3, 9, (2, 3)), decoder_attention_mask=mask)
        out.logits.sum().backward()
    assert not found
