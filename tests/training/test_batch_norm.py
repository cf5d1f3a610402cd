"""Batch norm follows the batches: in training alone, in the moving average too, and in a run that was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.training.callbacks import Progress
from anyformer.training.trainer import train
from tests.checkpoints.oracles import make_oracle, save_oracle
from tests.training.toy import DeadError, PictureToy, fingerprint, settings


def statistics(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def test_training_is_pytorchs(tmp_path: Path) -> None:
    """Outputs and statistics after two batches in training mode are those of the oracle's own batch norm."""
    oracle = make_oracle("ResNetForImageClassification").train()
    model = af.load(save_oracle(oracle, tmp_path)).train()
    torch.manual_seed(0)
    for _ in range(2):
        pictures = torch.randn(3, 3, 64, 64)
        torch.testing.assert_close(model(pixel_values=pictures).logits, oracle(pictures).logits)
    theirs = {n: b for n, b in oracle.named_buffers() if n.startswith("resnet.embedder")}
    ours = {n: b for n, b in model.named_buffers() if ".stem." in n}
    assert len(ours) == len(theirs) == 3
    for mine, other in zip(ours.values(), theirs.values(), strict=True):
        torch.testing.assert_close(mine, other)


def test_frozen_ones_stay() -> None:
    model = af.build("detr-tiny").train()
    before = statistics(model)
    model(pixel_values=torch.randn(2, 3, 64, 64))
    assert before and all(torch.equal(value, before[name]) for name, value in statistics(model).items())
    assert not any("norm" in name and "resnet" in name for name, _ in model.named_parameters())


def test_evaluating_leaves_them_alone() -> None:
    toy = PictureToy()
    before = statistics(toy.model)
    toy.model.eval()
    toy.evaluate()
    assert all(torch.equal(value, before[name]) for name, value in statistics(toy.model).items())


@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_cut_off_and_continued(ema: float, tmp_path: Path) -> None:
    """Bit for bit, statistics included."""
    chosen = settings(steps=12, save_every=4, eval_every=5, ema_decay=ema)
    whole = PictureToy()
    train(whole, chosen, folder=tmp_path / "whole")

    def die(progress: Progress) -> None:
        if progress.step == 7:
            raise DeadError

    with pytest.raises(DeadError):
        train(PictureToy(), chosen, folder=tmp_path / "cut", on_step=die)
    again = PictureToy()
    train(again, chosen, folder=tmp_path / "cut", resume=True)
    assert fingerprint(again.model) == fingerprint(whole.model)


def test_the_moving_average_has_its_own(tmp_path: Path) -> None:
    """Of the statistics after every step, by the same formula as the weights."""
    decay, toy, plain = 0.8, PictureToy(), PictureToy()
    seen = [statistics(plain.model)]
    train(plain, settings(steps=6, eval_every=0), on_step=lambda _: seen.append(statistics(plain.model)))
    train(toy, settings(steps=6, eval_every=0, ema_decay=decay), folder=tmp_path)
    for name, found in toy.model.named_buffers():
        if found.is_floating_point():
            expected = seen[0][name]
            for now in seen[1:]:
                expected = decay * expected + (1 - decay) * now[name]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
