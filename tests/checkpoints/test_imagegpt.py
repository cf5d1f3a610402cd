"""ImageGPT writes the pixels that transformers writes, from the token that every image begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from tests.checkpoints.oracles import make_oracle, save_oracle

START = 60  # the last of the small oracle's vocabulary


@pytest.mark.parametrize("given", [1, 13])
def test_greedy_pixels(given: int, tmp_path: Path) -> None:
    """All 24 pixels of an image of which nothing, or a half, is given: the same ids, in float64."""
    oracle = make_oracle("ImageGPTForCausalImageModeling").double()
    model = af.load(save_oracle(oracle, tmp_path))
    prompt = torch.randint(0, 60, (3, given), generator=torch.Generator().manual_seed(2))
    prompt[:, 0] = START
    theirs = oracle.generate(input_ids=prompt, max_length=25, do_sample=False)
    ours = model.generate(input_ids=prompt, max_length=25)
    assert theirs.shape == (3, 25) and len(set(theirs.flatten().tolist())) > 5
    assert torch.equal(ours, theirs)
    uncached = prompt
    for _ in range(25 - given):
        with torch.no_grad():
            uncached = torch.cat([uncached, model(input_ids=uncached).logits[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(ours, uncached)


def test_the_first_token_is_never_written(tmp_path: Path) -> None:
    """The output has no row for it, so that sampling cannot draw it either."""
    model = af.load(save_oracle(make_oracle("ImageGPTForCausalImageModeling"), tmp_path))
    start = torch.full((64, 1), START)
    drawn = model.generate(input_ids=start, max_length=25, do_sample=True, temperature=50.0, seed=0)
    assert int(drawn[:, 1:].max()) == START - 1
