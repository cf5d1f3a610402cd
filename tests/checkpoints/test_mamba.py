"""What a Mamba folder does beyond one pass: its cache under its own name, and the ids that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from tests.checkpoints.oracles import make_oracle, save_oracle


@pytest.mark.parametrize("seed", range(3))
def test_greedy_ids(seed: int, tmp_path: Path) -> None:
    """The ids of transformers' generate, row by row and left-padded in a batch."""
    oracle = make_oracle("MambaForCausalLM", seed, eos_token_id=59, pad_token_id=0)
    model = af.load(save_oracle(oracle, tmp_path))
    ids = torch.randint(1, 58, (3, 7))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    for batch in ({"input_ids": ids}, {"input_ids": ids.where(mask.bool(), 0), "attention_mask": mask}):
        theirs = oracle.generate(**batch, max_new_tokens=15, do_sample=False)
        assert torch.equal(model.generate(**batch, max_new_tokens=15), theirs)
    assert len(set(theirs.flatten().tolist())) > 5


def test_the_cache_has_the_name_of_its_class(tmp_path: Path) -> None:
    """cache_params, as MambaForCausalLM calls it, is taken and given; past_key_values is the same thing."""
    model = af.load(save_oracle(make_oracle("MambaForCausalLM"), tmp_path))
    ids = torch.randint(1, 58, (2, 6))
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        start = model(input_ids=ids[:, :4], use_cache=True)
        assert start.cache_params is start.past_key_values
        later = model(input_ids=ids[:, 4:], cache_params=start.cache_params)
    torch.testing.assert_close(later.logits, whole[:, 4:], rtol=1e-5, atol=1e-5)
