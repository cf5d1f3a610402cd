"""A model as what differs from another: exact for adapters, the nearest of its rank else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.core.lora import adapt, adapters, merge
from anyformer.model import Model
from anyformer.tasks.build import with_head
from anyformer.weights.difference import difference, factors, own_tensors
from anyformer.weights.files import write_tensors
from anyformer.weights.folder import own_config


def made(base: Path, folder: Path, model: Model, rank: int) -> dict[str, torch.Tensor]:
    """A folder with the difference alone, and what it holds."""
    folder.mkdir()
    found = difference(model, af.load(base), rank)
    write_tensors(folder, {name: value.contiguous().clone() for name, value in found.items()})
    (folder / "config.json").write_text(json.dumps({**own_config(model), "base": str(base)}))
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    af.build("bert-tiny", head="base").save(tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path, rank: int) -> Model:
    """The base with a new head and adapters that have learned something, made part of it."""
    model = with_head(af.load(base), False, head="classify", n_labels=3)
    adapt(model, rank, 8.0, ["*.blocks.*"])
    with torch.no_grad():
        for _, _, adapter in adapters(model):
            adapter.b.normal_(std=0.02)
    merge(model)
    return model.eval()


def test_adapters_come_back_exactly(base: Path, tmp_path: Path) -> None:
    """To rounding, at the rank that they have, though more is allowed; the rest of the model is not stored."""
    model = adapted(base, rank=3)
    found = made(base, tmp_path / "own", model, rank=16)
    assert all(value.shape[0] == 3 for name, value in found.items() if name.endswith(".a"))
    whole = sum(value.numel() for value in own_tensors(model).values())
    assert sum(value.numel() for value in found.values()) < 0.35 * whole
    assert not any("words" in name for name in found)
    ids = torch.randint(5, 200, (2, 9))
    torch.testing.assert_close(af.load(tmp_path / "own")(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)


def test_whole_matrices_come_back_as_near_as_the_rank_allows(base: Path, tmp_path: Path) -> None:
    """The error is the sum of the singular values left out, squared (Eckart and Young); norms and biases are exact."""
    model = af.load(base)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    made(base, tmp_path / "own", model, rank=8)
    before, after, start = (own_tensors(one) for one in (model, af.load(tmp_path / "own"), af.load(base)))
    for name, wanted in before.items():
        change = wanted - start[name]
        if change.dim() == 2 and 8 * sum(change.shape) < change.numel():
            left = torch.linalg.svdvals(change)[8:].square().sum().sqrt()
            torch.testing.assert_close((after[name] - wanted).norm(), left, rtol=1e-3, atol=1e-5)
        else:
            torch.testing.assert_close(after[name], wanted, rtol=1e-6, atol=1e-7)


def test_factors_that_would_be_no_smaller_are_not_made() -> None:
    assert factors(torch.randn(6, 6), 32) is None
    assert factors(torch.outer(torch.randn(6), torch.randn(6)), 32) is not None


def test_a_base_that_is_missing_or_another(base: Path, tmp_path: Path) -> None:
    made(base, tmp_path / "own", adapted(base, rank=2), rank=4)
    af.build("bert-tiny", head="base", d_model=32).save(tmp_path / "other")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    for name, says in (("other", "do not fit its base"), ("nowhere", "nowhere does not exist")):
        (tmp_path / "own" / "config.json").write_text(json.dumps({**config, "base": str(tmp_path / name)}))
        with pytest.raises(af.FolderError, match=says):
            af.load(tmp_path / "own")
