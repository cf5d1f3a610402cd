"""What transformers' own generation tests ask for, and no other test of ours does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from tests.checkpoints.oracles import make_oracle, save_oracle

IDS = torch.tensor([[5, 9, 11, 4], [8, 6, 2, 17]])


@pytest.mark.parametrize("beams", [1, 3])
def test_invalid_values_are_removed(beams: int, tmp_path: Path) -> None:
    """Forbidden words get the smallest number, as in transformers."""
    oracle = make_oracle("GPT2LMHeadModel").eval()
    model = af.load(save_oracle(oracle, tmp_path))
    options = {"max_new_tokens": 5, "num_beams": beams, "bad_words_ids": [[7], [1, 0]], "remove_invalid_values": True}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    theirs, ours = oracle.generate(IDS, **options), model.generate(IDS, **options)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert all(bool(step.isfinite().all()) for step in ours.scores)
    torch.testing.assert_close(ours.scores, theirs.scores, rtol=2e-5, atol=1e-6)


def test_nan_does_not_stop_a_run_that_removes_it() -> None:
    model = af.build("gpt2-tiny").eval()
    with torch.no_grad():
        next(model.parameters())[3] = float("nan")
    with pytest.raises(af.Error, match="NaN"):
        model.generate(torch.tensor([[3, 4]]), max_new_tokens=2)
    ids = model.generate(torch.tensor([[3, 4]]), max_new_tokens=2, remove_invalid_values=True, eos_token_id=None)
    assert ids.shape == (1, 4)


def test_a_text_begins_with_its_first_token(tmp_path: Path) -> None:
    """Asked for nothing, a decoder begins with bos_token_id."""
    oracle = make_oracle("LlamaForCausalLM").eval()
    oracle.config.bos_token_id = oracle.generation_config.bos_token_id = 3
    model = af.load(save_oracle(oracle, tmp_path))
    assert model.generate(max_new_tokens=4).tolist() == oracle.generate(max_new_tokens=4).tolist()
    with pytest.raises(af.Error, match="bos_token_id"):
        af.build("gpt2-tiny").generate(max_new_tokens=4, bos_token_id=None)


def test_beam_indices_have_the_type_of_transformers(tmp_path: Path) -> None:
    oracle = make_oracle("GPT2LMHeadModel").eval()
    model = af.load(save_oracle(oracle, tmp_path))
    options = {"num_beams": 2, "max_new_tokens": 3, "return_dict_in_generate": True, "output_scores": True}
    theirs, ours = oracle.generate(IDS, **options), model.generate(IDS, **options)
    assert ours.beam_indices.dtype == theirs.beam_indices.dtype == torch.int32
