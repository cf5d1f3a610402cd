"""Weights stored in fewer bits: how far they move, and that what is loaded computes in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.checkpoints.delta import own_tensors
from anyformer.checkpoints.files import write_tensors
from anyformer.checkpoints.low_precision import to_int8, to_low_precision

RECIPES = ("gpt2-tiny", "transformer-tiny", "vit-tiny", "detr-tiny", "line-reader-tiny")


def stored(model: af.Model, folder: Path, kind: str) -> Path:
    """The model's folder with its tensors in fewer bits."""
    model.save(folder)
    write_tensors(folder, {name: value.clone() for name, value in to_low_precision(own_tensors(model), kind).items()})  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("kind", "error"), [("bf16", 2**-8), ("int8", 0.5 / 127)])
def test_what_comes_back_is_float32_and_near(recipe: str, kind: str, error: float, tmp_path: Path) -> None:
    """bfloat16 keeps 8 bits of a number; in 8 bits half a step of the row's largest number is the most that is lost."""
    model = af.build(recipe).eval()
    again = af.load(stored(model, tmp_path, kind))
    assert again.dtype == torch.float32
    before, after = own_tensors(model), own_tensors(again)
    assert before.keys() == after.keys()
    for name, value in before.items():
        if value.is_floating_point():
            largest = (
                value.abs() if kind == "bf16" else value.abs().flatten(1).amax(1) if value.dim() > 1 else value.abs()
            )
            while largest.dim() < value.dim():
                largest = largest.unsqueeze(-1)
            assert ((after[name] - value).abs() <= error * largest + 1e-12).all(), name


def test_the_file_is_smaller(tmp_path: Path) -> None:
    """Half, and about a quarter."""
    model = af.build("transformer-tiny", d_model=128, d_hidden=512).eval()
    sizes = []
    for kind in ("float32", "bf16", "int8"):
        sizes.append((stored(model, tmp_path / kind, kind) / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.52 * sizes[0] and sizes[2] < 0.29 * sizes[0]


def test_as_another_type_on_demand(tmp_path: Path) -> None:
    folder = stored(af.build("gpt2-tiny").eval(), tmp_path, "bf16")
    assert af.load(folder, dtype="bfloat16").dtype == torch.bfloat16
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    assert af.load(folder).dtype == torch.bfloat16, "the config says what a model computes in"


def test_a_row_of_zeros_stays_one() -> None:
    """And every other row has a number that takes the largest step."""
    matrix = torch.randn(6, 40)
    matrix[3] = 0
    numbers, _ = to_int8(matrix)
    assert numbers.abs().amax(dim=1).tolist() == [127, 127, 127, 0, 127, 127]
