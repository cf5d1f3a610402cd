"""Random combinations of options give transformers' ids: a few in every run, hundreds among the slow tests."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from tests.generation.families import PAD, PAIRS, models, prompts
from tests.generation.test_options import ENDS, both_last_tokens, drawing_the_likeliest, said_an_even_token

pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["drawing_the_likeliest"]  # a fixture that every test here uses
FAMILIES = ("gpt2", "llama", "t5", "bart", "marian", "vision-encoder-decoder")
TOKENS = range(4, 1000)


def combination(seed: int) -> tuple[str, int, dict[str, Any]]:
    """A family, a number of rows and up to eight options that may go together."""
    dice = random.Random(seed)
    family, rows = dice.choice(FAMILIES), dice.choice((1, 2, 5))
    beams, samples = dice.choice((1, 1, 2, 4)), dice.random() < 0.3
    options: dict[str, Any] = {"num_beams": beams, "do_sample": samples, "pad_token_id": PAD}
    options["eos_token_id"] = dice.choice((ENDS, ENDS, 5, None))
    options["max_new_tokens"] = dice.randint(1, 14)
    words = [dice.sample(TOKENS, dice.randint(1, 2)) for _ in range(40)]
    rules: list[dict[str, Any]] = [
        {"min_new_tokens": dice.randint(1, options["max_new_tokens"])},
        {"repetition_penalty": dice.choice((0.7, 1.2, 2.0)), "suppress_tokens": [PAD]},
        {"no_repeat_ngram_size": dice.randint(1, 3), "suppress_tokens": [PAD]},
        {"bad_words_ids": words},
        {"sequence_bias": [[word, dice.uniform(-9, 9)] for word in words]},
        {"suppress_tokens": [PAD, *dice.sample(TOKENS, 500)]},
        {"begin_suppress_tokens": dice.sample(TOKENS, 600)},
        {"renormalize_logits": True},
        {"remove_invalid_values": True},
        {"logits_processor": LogitsProcessorList([both_last_tokens])},
        {"stopping_criteria": StoppingCriteriaList([said_an_even_token])},
        {"prefix_allowed_tokens_fn": lambda row, ids: [*range(4 + (int(ids[-1]) + row) % 5, 1000, 3)]},
        {"max_time": 1000.0},
        {"use_cache": True},
    ]
    if options["eos_token_id"] is not None:  # otherwise transformers fails
        rules += [{"exponential_decay_length_penalty": (dice.randint(0, 5), dice.uniform(1, 2))}]
    if family != "vision-encoder-decoder":
        rules += [{"encoder_no_repeat_ngram_size": dice.randint(1, 2), "suppress_tokens": [PAD]}]
        rules += [{"encoder_repetition_penalty": dice.uniform(0.5, 2), "suppress_tokens": [PAD]}]
    if beams > 1:
        rules += [{"length_penalty": dice.uniform(-2, 2)}, {"num_return_sequences": dice.randint(1, beams)}]
        rules += [{"early_stopping": dice.choice((True, "never"))}]
    if samples:
        rules += [
            {"temperature": dice.uniform(0.5, 2)},
            {"top_k": dice.randint(1, 50)},
            {"top_p": dice.uniform(0.1, 1)},
        ]
        rules += [{"min_p": dice.uniform(0, 0.2)}, {"typical_p": dice.uniform(0.2, 1)}, {"top_h": dice.uniform(0.2, 1)}]
        rules += [{"epsilon_cutoff": dice.uniform(0.001, 0.1)}, {"eta_cutoff": dice.uniform(0.001, 0.3)}]
    for rule in dice.sample(rules, dice.randint(1, 6)):
        options |= rule
    if "exponential_decay_length_penalty" in options:  # makes the numbers that stand for removed ones infinite
        options.pop("remove_invalid_values", None)
    free = sorted({*TOKENS} - {*options.get("suppress_tokens", ())})  # transformers refuses to force what it forbids
    options |= dice.choice(
        ({}, {}, {"forced_bos_token_id": dice.choice(free)}, {"forced_eos_token_id": dice.choice(free)})
    )
    return family, rows, options


def check(seed: int) -> None:
    family, rows, options = combination(seed)
    theirs, ours = models(family)
    batch = prompts(family, rows)
    if family not in PAIRS and options.get("prefix_allowed_tokens_fn"):
        batch = {"input_ids": batch["input_ids"], "attention_mask": torch.ones_like(batch["input_ids"])}
    expected = theirs.generate(**batch, **options)
    found = ours.generate(**batch, **options)
    expected = expected.masked_fill(expected == -1, PAD)  # see decision 57
    assert found.tolist() == expected.tolist(), (family, rows, options)


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_a_few(first: int) -> None:
    for seed in range(first, first + 8):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_many(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed)
