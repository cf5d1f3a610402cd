"""Scores of given continuations are those of a whole pass of transformers' model, whatever is shared on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation.scoring import ContinuationScores, score
from tests.generation.test_engine import PAD, VOCABULARY, gpt2, left_mask, marian, prompts  # noqa: F401 - fixtures

NEAR = 1e-7  # transformers' table of sinusoids is rounded to float32
Models = tuple[Any, af.Model]


def answers(sizes: list[int], seed: int = 1) -> list[list[int]]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCABULARY, (size,), generator=made).tolist() for size in sizes]


def expected(family: str, theirs: Any, prompt: list[int], answer: list[int]) -> list[float]:
    """One row at a time, nothing cached, nothing padded."""
    with torch.no_grad():
        if family == "gpt2":
            scores = theirs(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        else:
            read = torch.tensor([[PAD, *answer[:-1]]])
            scores = theirs(input_ids=torch.tensor([prompt]), decoder_input_ids=read).logits[0]
    found: list[float] = scores.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
    return found


def check(found: Tensor, wanted: list[list[float]]) -> None:
    assert found.shape == (len(wanted), max(map(len, wanted)))
    for row, values in zip(found.tolist(), wanted, strict=True):
        assert row[: len(values)] == pytest.approx(values, abs=NEAR)
        assert set(row[len(values) :]) <= {0.0}


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_one_continuation_a_prompt(family: str, request: pytest.FixtureRequest) -> None:
    theirs, ours = request.getfixturevalue(family)
    ids, rows = prompts(5), answers([4, 1, 7, 3, 5])
    wanted = [expected(family, theirs, prompt, row) for prompt, row in zip(ids.tolist(), rows, strict=True)]
    found = ours.score(input_ids=ids, continuations=rows)
    check(found.tokens, wanted)
    assert found.totals.tolist() == pytest.approx([sum(row) for row in wanted], abs=NEAR)
    assert found.means.tolist() == pytest.approx([sum(row) / len(row) for row in wanted], abs=NEAR)
    assert found.lengths.tolist() == [4, 1, 7, 3, 5] and found.counts == (1,) * 5
    padded = torch.full((5, 7), -100)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row)
    assert torch.equal(ours.score(ids, continuations=padded).tokens, found.tokens)


@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_many_continuations_of_each_prompt(family: str, batch_size: int | None, request: pytest.FixtureRequest) -> None:
    theirs, ours = request.getfixturevalue(family)
    ids = prompts(3)
    rows = [answers([3, 5]), answers([1, 1, 6, 2], seed=2), answers([4], seed=3)]
    wanted = [
        expected(family, theirs, prompt, row) for prompt, own in zip(ids.tolist(), rows, strict=True) for row in own
    ]
    found = ours.score(input_ids=ids, continuations=rows, batch_size=batch_size)
    check(found.tokens, wanted)
    assert found.counts == (2, 4, 1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_uneven_prompts(side: str, gpt2: Models) -> None:  # noqa: F811
    theirs, ours = gpt2
    ids, rows = prompts(6), answers([4, 1, 7, 3, 5, 2])
    mask = left_mask(ids) if side == "left" else left_mask(ids).flip(1)
    wanted = [expected("gpt2", theirs, ids[i][mask[i] == 1].tolist(), rows[i]) for i in range(6)]
    check(ours.score(input_ids=ids, attention_mask=mask, continuations=rows).tokens, wanted)


def test_the_prompt_is_read_once(gpt2: Models) -> None:  # noqa: F811
    model = gpt2[1]
    with af.look(model, "decoder.output") as seen:
        found = model.score(input_ids=prompts(1), continuations=answers([3, 5, 2]))
    assert [list(value.shape[:2]) for _, value in seen.log] == [[1, 7], [3, 4]]
    assert found.counts == (3,)


@pytest.mark.parametrize("name", ["mamba-tiny", "llama-tiny", "transformer-xl-tiny", "gemma3-tiny"])
def test_other_decoders_score_as_a_whole_pass(name: str) -> None:
    model = af.build(name).double().eval()
    ids, rows = torch.randint(2, 40, (1, 6)), answers([4, 1, 6])
    found = model.score(input_ids=ids, continuations=rows)
    for values, row in zip(found.tokens.tolist(), rows, strict=True):
        with torch.no_grad():
            logs = model(input_ids=torch.tensor([ids[0].tolist() + row])).logits[0, 5:-1].log_softmax(-1)
        assert values[: len(row)] == pytest.approx(logs[range(len(row)), row].tolist(), abs=1e-9)


@pytest.mark.parametrize("name", ["t5-tiny", "luong-tiny", "bahdanau-tiny", "bytenet-tiny", "bart-tiny"])
def test_other_pairs_score_as_a_whole_pass(name: str) -> None:
    model = af.build(name).double().eval()
    ids, rows = torch.randint(4, 40, (1, 6)), answers([4, 1, 6])
    found = model.score(input_ids=ids, continuations=rows, decoder_start_token_id=2)
    for values, row in zip(found.tokens.tolist(), rows, strict=True):
        with torch.no_grad():
            read = torch.tensor([[2, *row[:-1]]])
            logs = model(input_ids=ids, decoder_input_ids=read).logits[0].log_softmax(-1)
        assert values[: len(row)] == pytest.approx(logs[range(len(row)), row].tolist(), abs=1e-9)


def test_the_best_answer_of_each_prompt(gpt2: Models) -> None:  # noqa: F811
    """By the mean of the tokens, by the sum, and by how much likelier it is than after another prompt."""
    tokens = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, 0.0, 0.0], [-0.5, 0.0, 0.0], [-3.0, -0.4, 0.0]])
    scores = ContinuationScores(tokens, torch.tensor([3, 1, 1, 2]), (2, 2), torch.ones(4, dtype=torch.bool))
    assert scores.best() == [0, 0] and scores.best(by="total") == [1, 0]
    other = ContinuationScores(
        tokens * torch.tensor([[1.0], [1.0], [1.0], [2.0]]), scores.lengths, (2, 2), scores.greedy
    )
    assert scores.best(against=other) == [0, 1]
    model, ids = gpt2[1], prompts(1)
    likeliest = model.generate(ids, max_new_tokens=1, eos_token_id=None)[0, -1:].tolist()
    assert model.score(ids, continuations=[[3], likeliest, [5]]).best() == [1]


def test_gradients_flow_where_they_are_wanted(gpt2: Models) -> None:  # noqa: F811
    """Preference losses are made of such sums; `model.score` itself keeps no graph."""
    model = af.build("gpt2-tiny", vocab_size=VOCABULARY).double().eval()
    score(model, answers([3, 2]), input_ids=prompts(1)).totals.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert not model.score(prompts(1), continuations=[[3]]).tokens.requires_grad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"continuations": [[3], []]}, "Prompt 1"),
        ({"continuations": [[3]]}, "2 prompts .* continuations for 1"),
        ({"continuations": [[[3]], []]}, "Prompt 1"),
        ({"continuations": [[3], [VOCABULARY]]}, f"holds {VOCABULARY}"),
        ({"continuations": [[3], [-7]]}, "holds -7"),
        ({"continuations": [[3], [4]], "batch_size": 0}, "batch_size is 0"),
        ({"continuations": [[3], [4]], "input_idz": 0}, "takes no"),
    ],
    ids=str,
)
def test_bad_input(options: dict[str, Any], words: str, gpt2: Models) -> None:  # noqa: F811
    with pytest.raises(af.InputError, match=words):
        gpt2[1].score(input_ids=prompts(2), **options)


def test_what_cannot_be_scored_or_compared(gpt2: Models) -> None:  # noqa: F811
    model = gpt2[1]
    with pytest.raises(af.InputError, match="input_ids"):
        model.score(continuations=[[3]])
    with pytest.raises(af.InputError, match="bert"):
        af.build("bert-tiny").score(prompts(1), continuations=[[3]])
    found = model.score(prompts(1), continuations=[[3], [4]])
    with pytest.raises(af.InputError, match=r"2 continuations .* 1 in against"):
        found.best(against=model.score(prompts(1), continuations=[[3]]))
    with pytest.raises(af.InputError, match="luck"):
        found.best(by="luck")


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_which_continuation_is_the_greedy_one(family: str, request: pytest.FixtureRequest) -> None:
    """What `generate` of transformers returns is; with its last or first token changed, it is not."""
    theirs, ours = request.getfixturevalue(family)
    ids = prompts(3)
    made = theirs.generate(ids, max_new_tokens=6, eos_token_id=None, do_sample=False, num_beams=1)[:, -6:-2].tolist()
    rows = [[row, row[:2], [*row[:3], row[3] - 1], [row[0] - 1, *row[1:]]] for row in made]
    found = ours.score(input_ids=ids, continuations=rows, batch_size=5)
    assert found.greedy.tolist() == [True, True, False, False] * 3
