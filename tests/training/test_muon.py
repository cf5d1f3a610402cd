"""Muon against PyTorch's own, which turns matrices one by one in bfloat16, and in runs that are cut off or recorded."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.errors import StoppedError
from anyformer.training.callbacks import Progress
from anyformer.training.muon import PACE, TURNED, Muon, orthogonal
from anyformer.training.optim import make_optimizer
from anyformer.training.settings import TrainSettings
from anyformer.training.trainer import train
from tests.training.toy import Toy, fingerprint, settings


@pytest.mark.parametrize("shape", [(6, 6), (4, 12), (12, 4)])
def test_singular_values_come_near_to_one(shape: tuple[int, int]) -> None:
    found = torch.linalg.svdvals(orthogonal(torch.randn(3, *shape)))
    assert float(found.min()) > 0.4 and float(found.max()) < 1.3  # the iteration's own bounds are 0.68 and 1.13
    assert float(found.mean()) == pytest.approx(0.95, abs=0.15)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_matrices_move_as_by_pytorchs() -> None:
    torch.manual_seed(0)
    shapes = [(8, 16), (8, 16), (16, 8), (8, 8)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(one.detach().clone()) for one in ours]
    groups = [{"params": ours, TURNED: True, "weight_decay": 0.1}]
    mine, other = Muon(groups, lr=1e-3), torch.optim.Muon(theirs, lr=1e-3 * PACE, weight_decay=0.1)
    before = [one.detach().clone() for one in ours]
    for _ in range(3):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        mine.step()
        other.step()
    for one, two, start in zip(ours, theirs, before, strict=True):
        moved = (one - start).detach().norm()
        assert float((one - two).detach().norm() / moved) < 0.02  # bfloat16


def test_only_matrices_inside_blocks_are_turned() -> None:
    model = af.build("vit-tiny").eval()
    optimizer = make_optimizer(model, TrainSettings(optimizer="muon", weight_decay=0.1))
    turned = {id(p) for group in optimizer.param_groups if group[TURNED] for p in group["params"]}
    every = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(every) == sorted(id(p) for p in model.parameters())
    for name, parameter in model.named_parameters():
        assert (id(parameter) in turned) == (".blocks." in name and parameter.dim() == 2), name


def test_it_learns() -> None:
    assert train(Toy(dropout=0.0), settings(steps=150, lr=5e-3, optimizer="muon")).loss < 0.4


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    chosen = settings(optimizer="muon")
    with pytest.raises(StoppedError):
        train(Toy(), chosen, folder=tmp_path / "part", on_step=stop)
    toy, whole = Toy(), Toy()
    train(toy, chosen, folder=tmp_path / "part", resume=True)
    train(whole, chosen, folder=tmp_path / "whole")
    assert fingerprint(toy.model) == fingerprint(whole.model)


@pytest.mark.parametrize(("changes", "said"), [({"parallel": "fsdp"}, "parallel=ddp"), ({"precision": "fp16"}, "bf16")])
def test_what_it_does_not_go_with(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(af.ConfigError, match=said):
        TrainSettings(optimizer="muon", **changes)
