"""Speculative decoding writes what the model writes without a draft: the same ids, and so the same distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.cache import Cache
from anyformer.generation import engine
from anyformer.generation.plan import GenerationPlan
from anyformer.generation.speculative import CachedReader, ModelDraft, PromptLookupDraft, speculate
from anyformer.generation.strategies import Greedy, Sampling, SingleSequence, SpeculationStats

PAD, LENGTH, NEW, VOCABULARY = 0, 6, 17, 60

# Keys that can be cut short, windows, relative distances, and three kinds of recurrence that cannot be cut.
DECODERS = ["gpt2-tiny", "llama-tiny", "mistral-tiny", "mamba-tiny", "transformer-xl-tiny"]
PAIRS = ["transformer-tiny", "t5-tiny", "luong-tiny", "bahdanau-tiny", "bytenet-tiny"]

# How far the draft is from the model, so that some guesses are kept and some are not.
NOISE = {"transformer-tiny": 0.05, "transformer-xl-tiny": 0.5}


def pair(name: str, other: str | None = None) -> tuple[af.Model, af.Model]:
    """A model with large weights, so that the tokens vary, and a draft that is the same one, disturbed."""
    made = []
    for recipe in (name, other or name):
        torch.manual_seed(1)
        model = af.build(recipe, vocab_size=VOCABULARY).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4.0)
        made.append(model)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in made[1].parameters():
            parameter.mul_(1 + NOISE.get(name, 0.2) * torch.randn_like(parameter))
    return made[0], made[1]


def prompts(rows: int = 4) -> Tensor:
    return torch.randint(2, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(3))


def start(name: str) -> dict[str, Any]:
    return {"decoder_start_token_id": 2} if name in PAIRS else {}


SEARCHES: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 5},
    {"do_sample": True, "seed": 5, "temperature": 1.5, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
def test_the_draft_changes_nothing(name: str, search: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the families' memory is like, alone and in batches of uneven acceptance, with rows that end early."""
    reports: list[SpeculationStats] = []
    monkeypatch.setattr(engine, "speculate", lambda *args: reports.append(speculate(*args)) or reports[-1])
    model, draft = pair(name)
    options = {"max_new_tokens": NEW, "eos_token_id": [3, 4], "pad_token_id": PAD, **start(name), **search}
    for rows in (1, 3):
        plain = model.generate(prompts(rows), **options)
        for n in (1, 4):
            found = model.generate(prompts(rows), assistant_model=draft, num_assistant_tokens=n, **options)
            assert found.tolist() == plain.tolist()
    assert 0 < sum(report.accepted for report in reports) < sum(report.drafted for report in reports)


@pytest.mark.parametrize(
    ("name", "other"), [("gpt2-tiny", "mamba-tiny"), ("mamba-tiny", "gpt2-tiny"), ("llama-tiny", "gpt2-tiny")]
)
def test_draft_and_model_may_be_of_different_families(name: str, other: str) -> None:
    model, draft = pair(name, other)
    options = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": PAD, "do_sample": True, "seed": 1}
    assert model.generate(prompts(), assistant_model=draft, **options).tolist() == (
        model.generate(prompts(), **options).tolist()
    )


@pytest.mark.parametrize(
    "rule",
    [
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 10, "eos_token_id": list(range(3, 30))},
        {"forced_eos_token_id": 9},
        {"bad_words_ids": [[7], [9, 11]], "suppress_tokens": [20, 21]},
        {"presence_penalty": 0.7, "frequency_penalty": 0.3},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
    ],
    ids=str,
)
def test_rules_hold(rule: dict[str, Any]) -> None:
    model, draft = pair("gpt2-tiny")
    options = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": PAD, "do_sample": True, "seed": 1, **rule}
    plain = model.generate(prompts(), **options).tolist()
    assert model.generate(prompts(), assistant_model=draft, **options).tolist() == plain
    assert model.generate(prompts(), prompt_lookup_num_tokens=4, **options).tolist() == plain


@pytest.mark.parametrize("name", ["gpt2-tiny", "mamba-tiny"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_uneven_prompts(name: str, side: str) -> None:
    model, draft = pair(name)
    mask = (torch.arange(LENGTH)[None] >= torch.arange(4)[:, None]).long()
    mask = mask if side == "left" else mask.flip(1)
    options = {"attention_mask": mask, "max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": PAD}
    found = model.generate(prompts(), assistant_model=draft, **options)
    assert found.tolist() == model.generate(prompts(), **options).tolist()


@pytest.mark.parametrize("name", ["mistral-tiny", "gemma3-tiny"])
def test_windows_may_forget_on_the_way(name: str) -> None:
    """Long enough that memories behind the window are let go, while guesses are taken back."""
    model, draft = pair(name)
    options = {"max_new_tokens": 160, "eos_token_id": None, "pad_token_id": PAD}
    found = model.generate(prompts(1), assistant_model=draft, **options)
    assert found.tolist() == model.generate(prompts(1), **options).tolist()


def test_prompt_lookup_changes_nothing_either() -> None:
    model, _ = pair("llama-tiny")
    text = prompts(2).repeat(1, 3)
    for search in SEARCHES:
        options = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": PAD, **search}
        found = model.generate(text, prompt_lookup_num_tokens=3, **options)
        assert found.tolist() == model.generate(text, **options).tolist()


# Models whose next token depends on the last one alone: a table of scores, and nothing to remember but the length.


def table_reader(scores: Tensor, calls: list[int]) -> CachedReader:
    def read(state: Cache, ids: Tensor) -> Tensor:
        state.advance(None, ids.shape[0], ids.shape[1], ids.device)
        calls.append(ids.shape[1])
        return scores[ids]

    state = Cache()
    state.advance(None, 1, 1, scores.device)  # the prompt, one token
    return CachedReader(read, state)


def table_run(target: Tensor, draft: Tensor, strategy: SingleSequence, n: int) -> tuple[SpeculationStats, list[int]]:
    calls: list[int] = []
    guesses = ModelDraft(table_reader(draft, []), n)
    report = speculate(table_reader(target, calls), target[strategy.history[:, 0]], strategy, guesses)
    return report, calls


def plan(**more: Any) -> GenerationPlan:
    return GenerationPlan(prompt_length=1, pad_id=PAD, **more)


def test_a_perfect_draft_is_always_accepted() -> None:
    """20 tokens: the first from the prompt, then rounds of 4 guesses and a token of the model's own."""
    scores = torch.randn(5, 5)
    strategy = Greedy(plan(max_length=21), torch.ones(3, 1, dtype=torch.long))
    report, calls = table_run(scores, scores, strategy, n=4)
    assert report.rate == 1.0
    assert calls == [5, 5, 5, 4] and report.steps == 4 and report.drafted == report.accepted == 15
    assert strategy.result().shape == (3, 21)


def test_a_wrong_draft_is_never_accepted() -> None:
    """Each round gives one token, the model's own."""
    target = torch.eye(5).roll(1, dims=1)  # 0 -> 1 -> 2 -> 3 -> 4 -> 0
    strategy = Greedy(plan(max_length=11), torch.zeros(2, 1, dtype=torch.long))
    report, calls = table_run(target, target.roll(1, dims=1), strategy, n=3)
    assert report.accepted == 0 and report.rate == 0.0 and report.steps == 9
    assert strategy.result().tolist() == [[i % 5 for i in range(11)]] * 2
    assert calls[0] == 4


def test_rows_wait_for_the_least_accepted() -> None:
    """Row 0 never meets the draft's mistake, row 1 does at once: both go on, each with its own text."""
    target = torch.eye(6)[[1, 0, 3, 2, 5, 4]]  # 0 <-> 1, 2 <-> 3
    draft = torch.eye(6)[[1, 0, 2, 2, 5, 4]]  # wrong after 2
    strategy = Greedy(plan(max_length=7), torch.tensor([[0], [2]]))
    report, _ = table_run(target, draft, strategy, n=3)
    assert strategy.result().tolist() == [[0, 1, 0, 1, 0, 1, 0], [2, 3, 2, 3, 2, 3, 2]]
    assert 0 < report.accepted < report.drafted


def test_100000_draws_of_five_tokens() -> None:
    """A chi-squared test of every transition, through rounds in which guesses are kept and lost, against the table."""
    stats = pytest.importorskip("scipy.stats")
    made = torch.Generator().manual_seed(0)
    target = torch.randn(5, 5, generator=made)
    draft = target + 0.7 * torch.randn(5, 5, generator=made)
    rows, length, runs = 4, 250, 100
    counts, total = torch.zeros(5, 5), SpeculationStats()
    for run in range(runs):
        strategy = Sampling(
            plan(max_length=length + 1, do_sample=True, seeds=tuple(range(rows * run, rows * run + rows))),
            torch.ones(rows, 1, dtype=torch.long),
        )
        report, _ = table_run(target, draft, strategy, n=3)
        total.drafted += report.drafted
        total.accepted += report.accepted
        ids = strategy.result()
        counts += (5 * ids[:, :-1] + ids[:, 1:]).flatten().bincount(minlength=25).view(5, 5)
    assert int(counts.sum()) == 100_000
    assert 0.1 < total.rate < 0.9, "both ways must be taken often"
    expected = target.softmax(-1) * counts.sum(dim=1, keepdim=True)
    for row in range(5):
        assert stats.chisquare(counts[row], expected[row] * counts[row].sum() / expected[row].sum()).pvalue > 1e-4
    wrong = draft.softmax(-1) * counts.sum(dim=1, keepdim=True)
    assert stats.chisquare(counts[0], wrong[0] * counts[0].sum() / wrong[0].sum()).pvalue < 1e-9, "the test can fail"


def guess(text: list[int], n: int, longest: int = 2) -> list[int]:
    strategy = Greedy(plan(max_length=100), torch.tensor([text]))
    return PromptLookupDraft(n, longest).guess(strategy, n)[0].tolist()


def test_lookup_by_hand() -> None:
    assert guess([5, 6, 7, 8, 9, 5, 6], 2) == [7, 8]
    assert guess([5, 6, 7, 1, 5, 6, 8, 1, 5, 6], 1) == [8], "the latest match"
    assert guess([5, 6, 7, 1, 6, 9, 5, 6], 1) == [7], "a longer match wins over a later one"
    assert guess([1, 2, 3], 4) == [], "nothing stood before"
    assert guess([3, 7, 8, 7], 3) == [8, 7, 8], "where the text ends, round and round"
    assert guess([4], 3) == []


def test_what_cannot_help_is_refused() -> None:
    model, draft = pair("gpt2-tiny")
    ids = prompts(2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"assistant_model": af.build("gpt2-tiny", vocab_size=50).eval()}, "50 tokens"),
        ({"assistant_model": af.build("transformer-tiny", vocab_size=VOCABULARY).eval()}, "transformer"),
        ({"assistant_model": af.build("bert-tiny").eval()}, "bert"),
        ({"assistant_model": "gpt2"}, "assistant_model is a str"),
        ({"assistant_model": draft, "num_beams": 4}, "num_beams"),
        ({"assistant_model": draft, "prompt_lookup_num_tokens": 4}, "num_beams"),
        ({"assistant_model": draft, "num_assistant_tokens": 0}, "num_assistant_tokens is 0"),
        ({"prompt_lookup_num_tokens": -1}, "prompt_lookup_num_tokens is -1"),
    ]
    for options, words in cases:
        with pytest.raises(af.InputError, match=words):
            model.generate(ids, **options)
