"""A model as what differs from another: exact for adapters, to half a step in 4 bits else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.checkpoints.delta import apply_change, compute_delta, low_rank_factors, own_tensors, quantize_rows
from anyformer.checkpoints.files import write_tensors
from anyformer.checkpoints.folder import own_config
from anyformer.core.lora import add_lora, lora_layers, merge_lora
from anyformer.model import Model
from anyformer.tasks.build import with_head


def made(base: Path, folder: Path, model: Model) -> dict[str, torch.Tensor]:
    """A folder with the difference alone, and what it holds."""
    folder.mkdir()
    found = compute_delta(model, af.load(base))
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
    add_lora(model, rank, 8.0, ["*.blocks.*"])
    with torch.no_grad():
        for _, _, adapter in lora_layers(model):
            adapter.b.normal_(std=0.02)
    merge_lora(model)
    return model.eval()


def test_adapters_come_back_exactly(base: Path, tmp_path: Path) -> None:
    """To rounding, at the rank that they have; the rest of the model is not stored."""
    model = adapted(base, rank=3)
    found = made(base, tmp_path / "own", model)
    assert all(value.shape[0] == 3 for name, value in found.items() if name.endswith(".a"))
    whole = sum(value.numel() for value in own_tensors(model).values())
    assert sum(value.numel() for value in found.values()) < 0.35 * whole
    assert not any("words" in name for name in found)
    ids = torch.randint(5, 200, (2, 9))
    torch.testing.assert_close(af.load(tmp_path / "own")(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)


def test_whole_matrices_come_back_to_half_a_step(base: Path, tmp_path: Path) -> None:
    """A step is a seventh of the largest move of a row; rows that stayed are not stored, norms and biases are exact."""
    model = af.load(base)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
        words = own_tensors(model)["encoder.inputs.words.weight"]
        words[40:] = own_tensors(af.load(base))["encoder.inputs.words.weight"][40:]
    found = made(base, tmp_path / "own", model)
    assert found["encoder.inputs.words.weight.rows"].tolist() == list(range(40))
    before, after, start = (own_tensors(one) for one in (model, af.load(tmp_path / "own"), af.load(base)))
    for name, wanted in before.items():
        step = (wanted - start[name]).abs()
        step = step.amax(dim=1, keepdim=True) / 7 if name + ".steps" in found else 0 * step
        assert ((after[name] - wanted).abs() <= 0.501 * step + 1e-6).all(), name
    assert sum(name.endswith(".steps") for name in found) >= 5


def test_an_odd_number_of_columns_and_the_ends_of_the_range() -> None:
    """Seven steps either way, and none, are exact."""
    change = torch.tensor([[0.7, -0.7, 0.0], [0.2, -0.4, 1.4]])
    held = {f"x{end}": part for end, part in quantize_rows(change).items()}
    place = torch.zeros(2, 3)
    apply_change("x", held, place)
    torch.testing.assert_close(place, change)


def test_factors_are_made_where_they_are_smaller() -> None:
    assert low_rank_factors(torch.randn(64, 64)) is None
    a, b = low_rank_factors(torch.outer(torch.arange(1.0, 65), torch.ones(64)))  # type: ignore[misc]
    assert a.shape == (1, 64) and b.shape == (64, 1)
    torch.testing.assert_close(b @ a, torch.arange(1.0, 65)[:, None].expand(64, 64), rtol=1e-3, atol=1e-3)


def test_a_base_that_is_missing_or_another(base: Path, tmp_path: Path) -> None:
    made(base, tmp_path / "own", adapted(base, rank=2))
    af.build("bert-tiny", head="base", d_model=32).save(tmp_path / "other")
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    for name, says in (("other", "do not fit its base"), ("nowhere", "nowhere does not exist")):
        (tmp_path / "own" / "config.json").write_text(json.dumps({**config, "base": str(tmp_path / name)}))
        with pytest.raises(af.FolderError, match=says):
            af.load(tmp_path / "own")


def moved_both_ways(base: Path, folder: Path) -> dict[str, torch.Tensor]:
    """A model whose folder holds thin matrices, steps, and whole tensors."""
    model = adapted(base, rank=2)
    with torch.no_grad():
        own_tensors(model)["encoder.blocks.1.feedforward.up.weight"].normal_()
    return made(base, folder, model)


@pytest.mark.parametrize(
    ("end", "change"),
    [
        (".a", lambda t: t[:, 1:]),
        (".a", lambda t: t[:1]),
        (".b", lambda t: t.T),
        (".b", lambda t: t.flatten()),
        (".steps", lambda t: t[:, 1:]),
        (".steps", lambda t: t.float()),
        (".scale", lambda t: t[1:]),
        (".rows", lambda t: t + 10_000),
        (".rows", lambda t: t - 1),
        (".rows", lambda t: t[:, None]),
        ("bias", lambda t: torch.cat([t, t])),
    ],
)
def test_parts_that_do_not_fit(end: str, change: Any, base: Path, tmp_path: Path) -> None:
    found = moved_both_ways(base, tmp_path / "own")
    name = next(name for name in found if name.endswith(end))
    write_tensors(tmp_path / "own", {**found, name: change(found[name]).contiguous().clone()})
    with pytest.raises(af.WeightsError, match=name.replace(".", r"\.")):
        af.load(tmp_path / "own")
