"""Folders that transformers writes and reads and that are unlike most: each gives transformers' numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import Case, hf_class, make_case, make_oracle, save_oracle


def equal(model: af.Model, oracle: Any, case: Case) -> None:
    with torch.no_grad():
        compare(model(**case.batch), oracle(**case.batch), case)


def back_and_forth(oracle: Any, folder: Path, case: Case) -> None:
    """From their folder to ours, and from the one that we write back to theirs."""
    model = af.load(save_oracle(oracle.eval(), folder / "theirs"))
    equal(model, oracle, case)
    model.save(folder / "ours", format="hf")
    equal(model, type(oracle).from_pretrained(folder / "ours").eval(), case)
    model.save(folder / "own")
    equal(af.load(folder / "own"), oracle, case)


ENDLESS = {
    "MambaForCausalLM": "input_ids",
    "GitForCausalLM": "input_ids",
    "WhisperForConditionalGeneration": "input_features",
    "BartForConditionalGeneration": "input_ids",
    "T5ForConditionalGeneration": "input_ids",
    "MarianMTModel": "input_ids",
}


@pytest.mark.parametrize("architecture", ENDLESS)
def test_no_end(architecture: str, tmp_path: Path) -> None:
    """`"eos_token_id": null`: nothing but its length ends a text."""
    oracle, case = make_oracle(architecture).eval(), make_case(architecture)
    folder = save_oracle(oracle, tmp_path)
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    model = af.load(folder)
    equal(model, oracle, case)
    oracle.generation_config.eos_token_id = None
    given = {ENDLESS[architecture]: case.batch[ENDLESS[architecture]]}
    if "pixel_values" in case.batch:
        given["pixel_values"] = case.batch["pixel_values"]
    written = model.generate(**given, max_new_tokens=6)
    if architecture.startswith("Whisper"):  # whose class wants a whole generation config
        assert written.shape[1] == 6
        return
    theirs = oracle.generate(**given, max_new_tokens=6, do_sample=False, eos_token_id=None, use_cache=False)
    assert written.tolist() == theirs.tolist()


def test_mamba_of_another_inner_width(tmp_path: Path) -> None:
    oracle = make_oracle("MambaForCausalLM", intermediate_size=48)
    assert oracle.config.intermediate_size != oracle.config.expand * oracle.config.hidden_size
    back_and_forth(oracle, tmp_path, make_case("MambaForCausalLM"))
    model = af.load(tmp_path / "theirs")
    assert model.config.to_json()["d_inner"] == 48
    ids = torch.tensor([[5, 6, 7]])
    assert model.generate(ids, max_new_tokens=8, eos_token_id=None).tolist() == (
        oracle.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None).tolist()
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "architecture", ["BartForConditionalGeneration", "MarianMTModel", "T5ForConditionalGeneration"]
)
def test_resized_vocabulary(architecture: str, tied: bool, tmp_path: Path) -> None:
    """transformers makes one table of all where it resizes them, and saves it once."""
    oracle = make_oracle(architecture, tie_word_embeddings=tied)
    oracle.resize_token_embeddings(oracle.config.vocab_size + 7)
    back_and_forth(oracle, tmp_path, make_case(architecture))


def test_t5_untied_and_scaled(tmp_path: Path) -> None:
    oracle = make_oracle("T5ForConditionalGeneration")
    assert oracle.config.scale_decoder_outputs
    oracle.config.tie_word_embeddings = False
    oracle.lm_head.weight = nn.Parameter(torch.randn_like(oracle.lm_head.weight))
    case = make_case("T5ForConditionalGeneration")
    model = af.load(save_oracle(oracle.eval(), tmp_path / "theirs"))
    equal(model, oracle, case)
    model.save(tmp_path / "ours", format="hf")
    equal(af.load(tmp_path / "ours"), oracle, case)
    equal(model, hf_class("T5ForConditionalGeneration").from_pretrained(tmp_path / "ours").eval(), case)
    fresh = af.build("t5-tiny", tied=False, scaled=True).eval()
    fresh.save(tmp_path / "fresh", format="hf")
    equal(fresh, hf_class("T5ForConditionalGeneration").from_pretrained(tmp_path / "fresh").eval(), small(case))


def small(case: Case) -> Case:
    return Case({name: value % 20 if "ids" in name else value for name, value in case.batch.items()}, case.masks)


def test_git_with_a_padding_id_past_a_shrunken_vocabulary(tmp_path: Path) -> None:
    oracle = make_oracle("GitForCausalLM", pad_token_id=48)
    oracle.resize_token_embeddings(30)
    case = small(make_case("GitForCausalLM"))
    model = af.load(save_oracle(oracle.eval(), tmp_path))
    equal(model, oracle, case)
    model.train()(**case.batch).logits.sum().backward()
