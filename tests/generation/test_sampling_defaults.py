"""What sampling draws from if `top_k` is not set: transformers' 50 most likely tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.generation.families import VOCABULARY, models, prompts

pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA_3 = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": 1}  # as in its published folders

CASES: list[tuple[dict[str, Any], dict[str, Any], int | None]] = [  # file, call, tokens that remain (None: not fixed)
    ({}, {"do_sample": True}, 50),
    ({}, {"do_sample": True, "top_k": None}, VOCABULARY),
    ({}, {"do_sample": True, "top_k": 0}, VOCABULARY),
    ({}, {"do_sample": True, "top_k": 7}, 7),
    ({"top_k": 9}, {"do_sample": True}, 9),
    ({"top_k": 0}, {"do_sample": True}, VOCABULARY),
    ({"top_k": None}, {"do_sample": True}, 50),
    (LLAMA_3, {}, None),
    (LLAMA_3, {"top_k": 0}, None),
    ({**LLAMA_3, "top_p": 1.0, "temperature": 30.0}, {}, 50),
    ({}, {"do_sample": True, "num_beams": 2}, 50),
]


@pytest.mark.parametrize(("file", "call", "left"), CASES, ids=str)
def test_the_first_distribution_is_that_of_transformers(
    file: dict[str, Any], call: dict[str, Any], left: int | None, tmp_path: Path
) -> None:
    models("llama")[0].save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **file}))
    theirs, ours = type(models("llama")[0]).from_pretrained(tmp_path).eval(), af.load(tmp_path)
    asked = {**prompts("llama", 4), **call, "max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    wanted, found = theirs.generate(**asked).scores[0], ours.generate(**asked).scores[0]
    assert torch.equal(found.isfinite(), wanted.isfinite())
    some = wanted.isfinite()
    assert torch.allclose(found[some].double(), wanted[some].double(), atol=1e-5)
    if left is not None:
        assert some.sum(dim=1).tolist() == [left] * len(some)


def test_greedy_search_has_no_top_k() -> None:
    """The default is for sampling alone: it neither raises nor removes tokens elsewhere."""
    out = models("llama")[1].generate(**prompts("llama", 2), max_new_tokens=2, output_scores=True)
    assert bool(out.scores[0].isfinite().all())
