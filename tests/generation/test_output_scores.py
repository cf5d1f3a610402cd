"""The scores and logits that `generate` returns are transformers': the number of steps, the precision, the values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from tests.generation.families import PAD, PAIRS, every_family, models, prompts

pytestmark = pytest.mark.filterwarnings("ignore")
ENDS = list(range(4, 150))  # often said, so that searches end early
ASK = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def both(family: str, rows: int = 6, **options: Any) -> tuple[af.Output, Any]:
    theirs, ours = models(family)
    asked = {**prompts(family, rows), **ASK, "max_new_tokens": 9, "pad_token_id": PAD, **options}
    return ours.generate(**asked), theirs.generate(**asked)


def alike(ours: af.Output, theirs: Any) -> None:
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(theirs[name]), f"{name}: {len(ours[name])} steps instead of {len(theirs[name])}"
        for mine, his in zip(ours[name], theirs[name], strict=True):
            largest = float(his[his.isfinite()].abs().max())
            torch.testing.assert_close(mine.float(), his.float(), rtol=0, atol=1e-4 * max(largest, 1))


BEAMS: list[dict[str, Any]] = [
    {"num_beams": 3, "early_stopping": True, "eos_token_id": ENDS},
    {"num_beams": 4, "eos_token_id": ENDS, "length_penalty": 0.0},
    {"num_beams": 4, "eos_token_id": ENDS, "length_penalty": -2.0, "num_return_sequences": 3},
    {"num_beams": 8, "eos_token_id": ENDS, "length_penalty": -5.0, "early_stopping": "never"},
]


@pytest.mark.parametrize("options", BEAMS, ids=lambda one: f"{one['num_beams']} {one.get('early_stopping')}")
@every_family
def test_every_step_of_a_beam_search(family: str, options: dict[str, Any]) -> None:
    """Also those after the answers that come out, while other beams were still searched."""
    alike(*both(family, rows=3, **options))


def test_the_searches_above_go_on_beyond_their_answers() -> None:
    """Otherwise the number of steps would go untested."""
    beyond = 0
    for options in BEAMS:
        out, _ = both("gpt2", rows=3, **options)
        beyond += len(out.scores) > out.sequences.shape[1] - prompts("gpt2", 1)["input_ids"].shape[1]
    assert beyond > 0


@pytest.mark.parametrize("rules", [{}, {"suppress_tokens": list(range(200, 900))}], ids=["no rules", "a rule"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_normalized_scores_are_returned(family: str, search: dict[str, Any], rules: dict[str, Any]) -> None:
    ours, theirs = both(family, renormalize_logits=True, **search, **rules)
    alike(ours, theirs)
    sums = torch.stack([step.float().exp().sum(dim=-1) for step in ours.scores])
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_normalized_scores_of_samples() -> None:
    """The first step, which no draw precedes."""
    options = {"do_sample": True, "top_k": 20, "temperature": 2.0, "max_new_tokens": 1, "renormalize_logits": True}
    ours, theirs = both("llama", **options)
    torch.testing.assert_close(ours.scores[0].float(), theirs.scores[0].float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_models_return_single_precision(dtype: torch.dtype, options: dict[str, Any]) -> None:
    theirs, ours = (copy.deepcopy(model).to(dtype) for model in models("llama"))
    asked = {**prompts("llama", 2), **ASK, "max_new_tokens": 2, **options}
    found, wanted = ours.generate(**asked), theirs.generate(**asked)
    for name in ("scores", "logits"):
        assert {step.dtype for step in found[name]} == {step.dtype for step in wanted[name]} == {torch.float32}
    near: Tensor = found.logits[0] - wanted.logits[0]
    assert float(near.abs().max()) < 0.1 * float(wanted.logits[0].abs().max())


def draft(family: str) -> tuple[Any, af.Model]:
    """The same models with other weights, which agree now and then."""
    made = copy.deepcopy(models(family))
    for model in made:
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.data.mul_(1 + 0.05 * torch.rand(()).item())
    return made


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3, "suppress_tokens": [PAD]}], ids=str)
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
def test_scores_beside_an_assistant(family: str, options: dict[str, Any]) -> None:
    """One row, as transformers' assisted generation takes no more."""
    small = draft(family)
    theirs, ours = models(family)
    asked = {**prompts(family, 1), **ASK, "max_new_tokens": 9, "eos_token_id": None, **options}
    plain = ours.generate(**asked)
    found = ours.generate(**asked, assistant_model=small[1])
    wanted = theirs.generate(**asked, assistant_model=small[0])
    alike(found, wanted)
    for name in ("logprobs", "raw_logprobs"):
        torch.testing.assert_close(found[name], plain[name], rtol=0, atol=1e-5)
    assert list(found) == list(plain)


@pytest.mark.parametrize("family", [family for family in PAIRS if family != "vision-encoder-decoder"])
def test_alignment_beside_an_assistant(family: str) -> None:
    """Several rows, and by looking the text up."""
    _, ours = models(family)
    asked = {**prompts(family, 3), "max_new_tokens": 9, "alignment": True, "logprobs": True, "pad_token_id": PAD}
    plain = ours.generate(**asked)
    for more in ({"assistant_model": draft(family)[1]}, {"prompt_lookup_num_tokens": 3}):
        found = ours.generate(**asked, **more)
        assert found.sequences.tolist() == plain.sequences.tolist()
        torch.testing.assert_close(found.alignment, plain.alignment, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.logprobs, plain.logprobs, rtol=0, atol=1e-6)


def test_fields_come_in_the_order_of_transformers() -> None:
    for options in ({}, {"num_beams": 2}):
        ours, theirs = both("gpt2", rows=2, **options)
        names = [name for name in theirs if name != "past_key_values"]
        assert list(ours)[: len(names)] == names
