"""Sampling draws from the distribution that the options describe, and each row from its own seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation import logits_processors
from tests.generation.test_engine import PAD, gpt2, prompts  # noqa: F401 - fixture

SCORES = torch.randn(6, 50, generator=torch.Generator().manual_seed(1)) * 3
HISTORY = torch.zeros(6, 4, dtype=torch.long)


def warper(name: str, *args: Any) -> Any:
    module = pytest.importorskip("transformers.generation.logits_process")
    return getattr(module, name)(*args)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda s: logits_processors.keep_top_k(s, 7), ("TopKLogitsWarper", 7)),
        (lambda s: logits_processors.keep_top_k(s, 500), ("TopKLogitsWarper", 500)),
        (lambda s: logits_processors.keep_top_p(s, 0.8), ("TopPLogitsWarper", 0.8)),
        (lambda s: logits_processors.keep_top_p(s, 0.01), ("TopPLogitsWarper", 0.01)),
        (lambda s: logits_processors.keep_min_p(s, 0.1), ("MinPLogitsWarper", 0.1)),
        (lambda s: logits_processors.keep_typical(s, 0.6), ("TypicalLogitsWarper", 0.6)),
        (lambda s: logits_processors.keep_typical(s, 0.05), ("TypicalLogitsWarper", 0.05)),
    ],
)
def test_truncations_are_those_of_transformers(ours: Any, theirs: tuple[Any, ...]) -> None:
    expected = warper(*theirs)(HISTORY, SCORES.clone())
    assert torch.equal(ours(SCORES), expected)


def test_penalties() -> None:
    """Once for being there, and once more for each time; the prompt does not count."""
    history = torch.tensor([[5, 5, 7, 7, 9]])
    found = logits_processors.presence_frequency_penalty(
        torch.zeros(1, 12), history, presence=0.5, frequency=0.25, prompt=2
    )
    assert found[0, [5, 7, 9, 3]].tolist() == [0.0, -1.0, -0.75, 0.0]


def draws(model: af.Model, prompt: Tensor, n: int, **options: Any) -> Tensor:
    rows = prompt.expand(n, -1)
    return model.generate(rows, max_new_tokens=1, do_sample=True, eos_token_id=None, pad_token_id=PAD, **options)[:, -1]


@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}], ids=str)
def test_frequencies(options: dict[str, Any], gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    """20,000 draws against the probabilities: a chi-squared test."""
    stats = pytest.importorskip("scipy.stats")
    model, prompt, n = gpt2[1], prompts(1), 20_000
    with torch.no_grad():
        scores = model(input_ids=prompt).logits[:, -1] * 0.1  # flatten it, or there is nothing to count
    flat = {"temperature": 10.0 * options.get("temperature", 1.0)}
    wanted = scores / options.get("temperature", 1.0)
    for name, rule in (
        ("top_k", logits_processors.keep_top_k),
        ("top_p", logits_processors.keep_top_p),
        ("min_p", logits_processors.keep_min_p),
    ):
        if name in options:
            wanted = rule(wanted, options[name])
    probabilities = wanted.softmax(-1)[0]
    counts = draws(model, prompt, n, seed=11, **{**options, **flat}).bincount(minlength=len(probabilities)).double()
    assert int(counts[probabilities == 0].sum()) == 0
    likely = probabilities * n >= 5
    expected, found = (probabilities * n)[likely], counts[likely]
    rest = n - float(expected.sum()), n - float(found.sum())
    if rest[0] >= 5:
        expected, found = torch.cat([expected, torch.tensor([rest[0]])]), torch.cat([found, torch.tensor([rest[1]])])
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-4


def test_a_row_depends_on_its_own_seed_alone(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    model, ids = gpt2[1], prompts(5)
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 3.0, "eos_token_id": None, "pad_token_id": PAD}
    together = model.generate(ids, seed=[1, 2, 3, 4, 5], **options)
    assert together.tolist() == model.generate(ids, seed=1, **options).tolist()
    for row in range(5):
        assert model.generate(ids[row : row + 1], seed=[row + 1], **options)[0].tolist() == together[row].tolist()
    assert together.tolist() != model.generate(ids, seed=9, **options).tolist()


def test_several_draws_of_one_prompt(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    model, ids = gpt2[1], prompts(2)
    found = model.generate(ids, max_new_tokens=6, do_sample=True, temperature=20.0, num_return_sequences=3, seed=4)
    assert found.shape[0] == 6 and found[:3, :7].tolist() == [ids[0].tolist()] * 3
    assert len({tuple(row) for row in found.tolist()}) > 3
