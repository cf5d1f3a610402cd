"""Beam search gives the ids of transformers' generate; a beam of one is greedy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af

from .test_engine import END, PAD, VOCABULARY, compare, gpt2, left_mask, marian, prompts  # noqa: F401 - fixtures

ENDS = [3, 4, 5, 6, 7, 8]
FILL = 2  # with 0, transformers takes the padding id for none and fills with the first end
OPTIONS: list[dict[str, Any]] = [
    {"num_beams": 2},
    {"num_beams": 4, "max_new_tokens": 25},
    {"num_beams": 4, "max_new_tokens": 25, "early_stopping": True},
    {"num_beams": 4, "max_new_tokens": 25, "early_stopping": "never"},
    {"num_beams": 3, "max_new_tokens": 25, "eos_token_id": ENDS},
    {"num_beams": 3, "max_new_tokens": 25, "eos_token_id": ENDS, "early_stopping": True, "length_penalty": 0.0},
    {"num_beams": 3, "max_new_tokens": 25, "eos_token_id": ENDS, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 5, "max_new_tokens": 25, "length_penalty": -1.0, "eos_token_id": ENDS},
    {"num_beams": 4, "max_new_tokens": 25, "num_return_sequences": 3, "eos_token_id": ENDS},
    {"num_beams": 4, "max_new_tokens": 12, "min_new_tokens": 10, "eos_token_id": ENDS},
    {"num_beams": 4, "max_new_tokens": 20, "no_repeat_ngram_size": 2},
    {"num_beams": 4, "max_new_tokens": 20, "repetition_penalty": 1.3, "eos_token_id": ENDS},
    {"num_beams": 4, "max_new_tokens": 20, "bad_words_ids": [[7], [9, 11], [12, 13, 14]]},
    {"num_beams": 3, "max_new_tokens": 6, "forced_eos_token_id": 9},
    {"num_beams": 20, "max_new_tokens": 8},
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_beams_are_those_of_transformers(family: str, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    models = request.getfixturevalue(family)
    ids = prompts()
    given = {"pad_token_id": FILL, **options}
    compare(models, input_ids=ids, attention_mask=torch.ones_like(ids), **given)


GREEDY: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 2, "max_new_tokens": 25},
    {"no_repeat_ngram_size": 1, "max_new_tokens": 12},
    {"repetition_penalty": 1.5, "max_new_tokens": 25},
    {"bad_words_ids": [[7], [9, 11], [12, 13, 14]], "max_new_tokens": 25},
    {"begin_suppress_tokens": [3, 5, 8, 20, 30], "max_new_tokens": 5},
]


@pytest.mark.parametrize("options", GREEDY, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_rules_are_those_of_transformers(family: str, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    ids = prompts()
    compare(
        request.getfixturevalue(family), input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=PAD, **options
    )


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
    """A row's beams do not depend on its neighbours."""
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
