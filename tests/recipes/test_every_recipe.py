"""What every recipe must do: build, learn, save, load, and show its inside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from tests.checkpoints.compare import flat
from tests.recipes.batches import training_batch
from tests.tiny import family_of, tiny_recipes

NO_ATTENTION = (
    "bilstm-tiny",
    "textcnn-tiny",
    "mamba-tiny",
    "sutskever-tiny",
    "bytenet-tiny",
    "mlp-mixer-tiny",
    "resnet-tiny",
    "show-tell-tiny",
)
NO_DROPOUT = (
    *("deit-tiny", "hybrid-tiny", "mae-tiny", "resnet-tiny", "vit-tiny"),  # as published
    *("dinov2-tiny", "modernbert-tiny"),
    *("bilstm-tiny", "textcnn-tiny", "mamba-tiny", "sutskever-tiny", "bytenet-tiny", "mlp-mixer-tiny"),
    *("ast-tiny", "set-transformer-tiny", "timesformer-tiny", "videomae-tiny", "whisper-toy"),
    *("beit-tiny", "keypoint-detr-tiny", "segmenter-tiny", "vitpose-tiny"),
    *("clip-tiny", "clip-text-tiny", "clip-vision-tiny"),
)
TINY = tiny_recipes()


def loss_of(model: af.Model, name: str, batch: dict[str, Any]) -> Tensor:
    out = model(**batch)
    if name.startswith(("clip-text", "clip-vision")):  # a tower alone has no loss: any target will do
        embeds: Tensor = out[f"{'text' if name == 'clip-text-tiny' else 'image'}_embeds"]
        return (embeds - torch.linspace(-1, 1, 64).view(2, 32)).square().mean()
    loss: Tensor = out.loss
    return loss


def test_there_is_a_tiny_one_of_each_family() -> None:
    from anyformer.registry import FAMILIES

    assert {family_of(name) for name in TINY} == set(FAMILIES)


@pytest.mark.parametrize("name", TINY)
def test_one_step(name: str) -> None:
    """Every trainable parameter gets a finite gradient, and a step along it lowers the loss."""
    torch.manual_seed(0)
    model = af.build(name).eval()
    batch = training_batch(name)
    loss = loss_of(model, name, batch)
    loss.backward()
    trainable = {path: p for path, p in model.named_parameters() if p.requires_grad}
    without = [path for path, p in trainable.items() if p.grad is None or not bool(torch.isfinite(p.grad).all())]
    assert not without
    with torch.no_grad():
        squared = sum(float(p.grad.square().sum()) for p in trainable.values())  # type: ignore[union-attr]
        for p in trainable.values():
            p -= 1e-4 / max(squared**0.5, 1e-6) * p.grad  # type: ignore[operator]
        assert float(loss_of(model, name, batch)) < float(loss)


@pytest.mark.parametrize("name", TINY)
def test_overfits_one_batch(name: str) -> None:
    """A model that cannot learn two rows by heart is wired wrongly."""
    torch.manual_seed(0)
    model = af.build(name).eval()
    batch = training_batch(name)
    start = float(loss_of(model, name, batch))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(150):
        loss = loss_of(model, name, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss_of(model, name, batch)) < 0.2 * start


@pytest.mark.parametrize("name", TINY)
def test_saves_and_loads(name: str, tmp_path: Path) -> None:
    """The saved folder is the same model, tied parameters still tied."""
    model = af.build(name).eval()
    model.save(tmp_path / "folder")
    again = af.load(tmp_path / "folder", optimize=False)
    assert again.config == model.config and again.origin.recipe == name
    batch = training_batch(name)
    with torch.no_grad():
        found = flat(again(**batch))
        for field, value in flat(model(**batch)).items():
            torch.testing.assert_close(found[field], value, rtol=0, atol=0, msg=field)
    assert len(list(model.parameters())) == len(list(again.parameters()))
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in again.parameters()]


@pytest.mark.parametrize("name", TINY)
def test_has_its_taps(name: str) -> None:
    """Every attention shows its weights, and each row of them is a distribution."""
    model = af.build(name).eval()
    batch = training_batch(name)
    weights = [point for point in model.points if point.endswith(".weights")]
    outputs = "*.stages.*.output" if name == "resnet-tiny" else "*.blocks.*.output"
    with torch.no_grad(), af.look(model, *weights, outputs) as seen:
        model(**batch)
    assert (weights or name in NO_ATTENTION) and all(point in seen for point in weights)
    for point in weights:
        rows = seen[point].sum(dim=-1)
        assert bool(((rows - 1).abs() < 1e-5).logical_or(rows == 0).all()), point
    assert any(point.endswith(".output") for point in seen)


@pytest.mark.parametrize("name", TINY)
def test_dropout_only_in_training(name: str) -> None:
    """A built model is in eval mode and repeats itself; in training mode it does not."""
    model = af.build(name).eval()
    batch = training_batch(name)
    with torch.no_grad():
        a, b = loss_of(model, name, batch), loss_of(model, name, batch)
        assert torch.equal(a, b)
        model.train()
        if name not in NO_DROPOUT:
            assert not torch.equal(loss_of(model, name, batch), loss_of(model, name, batch))


@pytest.mark.parametrize("name", af.recipes())
def test_docstring(name: str) -> None:
    """A family says what it is like and what is different, and what was published."""
    from anyformer.cli.main import heading
    from anyformer.registry import recipe

    family = recipe(name).family
    about = sys.modules[family.config.__module__].__doc__ or ""
    assert "Published:" in about and len(heading(family.description)) <= 80
    assert "as " in about.lower() or "original Transformer" in about
