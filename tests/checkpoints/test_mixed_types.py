"""Checkpoints whose tensors are stored in several types: nothing that is stored in float32 is rounded unasked."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import anyformer as af
from tests.batches import ids

ROW = ids()[0][None]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Matrices in bfloat16 as trained, norms in float32 with numbers that bfloat16 does not have; and a tensor that no
    model needs, as old folders of Llama have it."""
    torch.manual_seed(0)
    af.build("llama-tiny").eval().to(torch.bfloat16).save(tmp_path, format="hf")
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        if "norm" in name:
            tensors[name] = 1 + torch.randn(tensors[name].shape) / 8
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def _edit(folder: Path, **more: torch.Tensor) -> None:
    tensors = {name: x.to(torch.bfloat16) for name, x in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, **more}, folder / "model.safetensors", metadata={"format": "pt"})


def test_float32_among_bfloat16_is_kept(mixed: Path) -> None:
    with pytest.warns(UserWarning, match=r'bfloat16 .*float32.*dtype="bfloat16"'):
        model = af.load(mixed)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    stored = load_file(mixed / "model.safetensors")
    assert torch.equal(model.stages["decoder"].stack.final_norm.weight, stored["model.norm.weight"])
    theirs = AutoModelForCausalLM.from_pretrained(mixed, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(model(ROW).logits, theirs(ROW).logits, atol=1e-5, rtol=0)


def test_whoever_asks_for_a_type_gets_it(mixed: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert af.load(mixed, dtype="bfloat16").dtype == torch.bfloat16


def test_tensors_that_no_part_reads_do_not_count(mixed: Path) -> None:
    _edit(mixed, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert af.load(mixed).dtype == torch.bfloat16


def test_two_kinds_of_half(mixed: Path) -> None:
    """Neither holds the other's numbers."""
    stored = load_file(mixed / "model.safetensors")
    _edit(mixed, **{"model.norm.weight": stored["model.norm.weight"].to(torch.float16)})
    with pytest.warns(UserWarning, match="bfloat16 and float16"):
        assert af.load(mixed).dtype == torch.float32


def test_a_few_halves_among_float32(mixed: Path) -> None:
    _edit(mixed)
    stored = {name: x if "norm" in name else x.float() for name, x in load_file(mixed / "model.safetensors").items()}
    save_file(stored, mixed / "model.safetensors", metadata={"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert af.load(mixed).dtype == torch.float32
