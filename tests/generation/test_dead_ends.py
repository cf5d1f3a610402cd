"""Rows in which the options forbid every next token: they end there, with the prompt, and a warning says so."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
from torch import Tensor

from tests.generation.families import DECODERS, LENGTH, PAD, VOCABULARY, models, new_tokens, prompts

SEARCHES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 1},
    {"num_beams": 2},
    {"num_beams": 4},
    {"num_beams": 4, "do_sample": True},
    {"num_beams": 4, "num_return_sequences": 2, "early_stopping": True},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
]


def two_tokens(row: int, said: Tensor) -> list[int]:
    return [5, 6]


def ask(family: str, rows: int = 2, **options: Any) -> dict[str, Any]:
    given = {
        "prefix_allowed_tokens_fn": two_tokens,
        "no_repeat_ngram_size": 2,
        "pad_token_id": PAD,
        "max_new_tokens": 12,
    }
    return {**prompts(family, rows), **given, **options}


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_what_was_written_so_far_comes_out(family: str, search: dict[str, Any]) -> None:
    _, model = models(family)
    with pytest.warns(UserWarning, match=r"no_repeat_ngram_size, prefix_allowed"):
        found = model.generate(**ask(family), **search)
    many = search.get("num_return_sequences", 1)
    if family in DECODERS:
        assert found[:, :LENGTH].tolist() == prompts(family, 2)["input_ids"].repeat_interleave(many, dim=0).tolist()
    new = new_tokens(family, found)
    assert new.shape[1] >= 2
    for row in new.tolist():
        said = [token for token in row if token != PAD]
        assert set(said) <= {5, 6}, "a forbidden token was written"
        pairs = list(itertools.pairwise(said))
        assert len(pairs) == len(set(pairs)), "two tokens follow one another twice"
        assert row[: len(said)] == said, "nothing comes after the padding"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("search", SEARCHES[:3], ids=str)
def test_scores_of_a_row_that_ended(search: dict[str, Any]) -> None:
    _, model = models("gpt2")
    out = model.generate(**ask("gpt2", **search), output_scores=True, logprobs=True)
    assert bool(out.logprobs.isfinite().all())
    assert out.lengths.tolist() == (LENGTH + (out.sequences[:, LENGTH:] != PAD).sum(dim=1)).tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("search", SEARCHES[:4], ids=str)
def test_nothing_can_be_said_at_all(search: dict[str, Any]) -> None:
    """The prompt alone comes out; transformers writes a forbidden token."""
    _, model = models("gpt2")
    options = ask("gpt2", no_repeat_ngram_size=0, bad_words_ids=[[5], [6]], **search)
    assert model.generate(**options).tolist() == prompts("gpt2", 2)["input_ids"].tolist()
    out = model.generate(**options, output_scores=True)
    assert out.sequences.shape[1] == LENGTH


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_beams_that_can_end_are_preferred(family: str) -> None:
    """An end is a better answer than a text that could not go on, whatever its score."""
    _, model = models(family)
    end = 7

    def allowed(row: int, said: Tensor) -> list[int]:
        return [end] if said[-2:].tolist() == [5, 6] else [5, 6]

    options = ask(family, prefix_allowed_tokens_fn=allowed, no_repeat_ngram_size=3, eos_token_id=end, num_beams=4)
    assert all(end in row for row in model.generate(**options).tolist())


def test_one_row_that_cannot_go_on_does_not_stop_the_others() -> None:
    _, model = models("gpt2")

    def allowed(row: int, said: Tensor) -> list[int]:
        return [5, 6] if row == 0 else list(range(4, 1000))

    with pytest.warns(UserWarning, match="Row 0"):
        found = new_tokens("gpt2", model.generate(**ask("gpt2", prefix_allowed_tokens_fn=allowed, eos_token_id=None)))
    assert found.shape[1] == 12 and PAD in found[0].tolist() and PAD not in found[1].tolist()


def test_rows_that_are_refilled() -> None:
    """`generate_many` gives what `generate` gives."""
    _, model = models("gpt2")
    options = ask("gpt2", 4, suppress_tokens=[token for token in range(VOCABULARY) if token not in (5, 6)])
    del options["prefix_allowed_tokens_fn"]
    ids, mask = options.pop("input_ids"), options.pop("attention_mask")
    prompts_alone = [row[real.bool()] for row, real in zip(ids, mask, strict=True)]
    with pytest.warns(UserWarning, match="every next token is forbidden"):
        found = dict(model.generate_many(prompts_alone, rows=2, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, prompt in enumerate(prompts_alone):
            assert found[number].tolist() == model.generate(prompt[None], **options)[0].tolist()


@pytest.mark.filterwarnings("ignore")
def test_a_draft_changes_nothing() -> None:
    _, model = models("gpt2")
    plain = model.generate(**ask("gpt2"))
    for more in ({"assistant_model": model}, {"prompt_lookup_num_tokens": 3}):
        assert model.generate(**ask("gpt2"), **more).tolist() == plain.tolist()


def test_usual_searches_do_not_warn() -> None:
    _, model = models("gpt2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for search in SEARCHES[:4]:
            model.generate(**prompts("gpt2", 2), no_repeat_ngram_size=2, pad_token_id=PAD, max_new_tokens=4, **search)
