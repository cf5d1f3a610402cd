"""Beam search on uneven rows, and against every possible answer; test_parity.py has its options."""

from __future__ import annotations

from typing import Any

import torch

import anyformer as af
from tests.generation.test_engine import END, PAD, VOCABULARY, compare, gpt2, left_mask, marian, prompts  # noqa: F401 - fixtures

ENDS = [3, 4, 5, 6, 7, 8]


def test_uneven_prompts(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    ids = prompts()
    mask = left_mask(ids)
    ids = ids.masked_fill(mask == 0, PAD)
    compare(gpt2, input_ids=ids, attention_mask=mask, max_new_tokens=15, num_beams=4, pad_token_id=PAD)


def test_uneven_sources(marian: tuple[Any, af.Model]) -> None:  # noqa: F811
    ids = prompts()
    mask = left_mask(ids).flip(1)
    ids = ids.masked_fill(mask == 0, PAD)
    compare(marian, input_ids=ids, attention_mask=mask, max_new_tokens=15, num_beams=4)


def test_batch_is_single(marian: tuple[Any, af.Model]) -> None:  # noqa: F811
    """A row's beams do not depend on its neighbors."""
    model, ids = marian[1], prompts(6)
    options = {"max_new_tokens": 15, "num_beams": 4, "eos_token_id": ENDS, "pad_token_id": PAD}
    together = model.generate(ids, **options)
    for i in range(len(ids)):
        alone = model.generate(ids[i : i + 1], **options)[0].tolist()
        assert together[i].tolist()[: len(alone)] == alone
        assert set(together[i].tolist()[len(alone) :]) <= {PAD}


def test_a_wide_enough_beam_finds_the_best(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    """Against every possible continuation of three tokens."""
    model, prompt = gpt2[1], prompts(1)
    small = 12
    banned = [*range(small, VOCABULARY), END]
    options = {"max_new_tokens": 3, "suppress_tokens": banned, "eos_token_id": None, "length_penalty": 0.0}
    found = model.generate(prompt, num_beams=small**2, **options)[0, -3:].tolist()
    words = torch.cartesian_prod(*[torch.arange(small)] * 3)
    words = words[(words != END).all(dim=1)]
    with torch.no_grad():
        rows = torch.cat([prompt.expand(len(words), -1), words], dim=1)
        logs = model(input_ids=rows).logits[:, -4:-1].log_softmax(-1)
    total = logs.gather(2, words[..., None]).sum(dim=(1, 2))
    assert words[total.argmax()].tolist() == found
