"""How weights move, against the papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch

import anyformer as af
from anyformer.training.optim import inverse_sqrt, learning_rate, make_optimizer, paper_peak, parameter_groups
from anyformer.training.settings import TrainSettings

SMALL = {"n_layers": 3, "d_model": 32, "n_heads": 2, "d_hidden": 64, "vocab_size": 20, "dropout": 0.1}


def make_model() -> af.Model:
    return af.build("transformer-tiny", **SMALL).eval()


def test_the_rate_is_the_papers() -> None:
    """lrate = d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), equation 3."""
    settings = TrainSettings(schedule="inverse_sqrt", warmup_steps=4000, lr=paper_peak(512, 4000))
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert (
            learning_rate(step, settings) == inverse_sqrt(step, settings.lr, 4000) == pytest.approx(expected, rel=1e-12)
        )
    with pytest.raises(af.ConfigError, match=r"inverse_sqrt .*warmup_steps"):
        TrainSettings(schedule="inverse_sqrt")


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_other_schedules_are_pytorchs(schedule: str) -> None:
    """Up in a straight line, then as PyTorch's own schedulers go down to the end."""
    settings = TrainSettings(schedule=schedule, warmup_steps=10, steps=50, lr=2.0, min_lr=0.5)  # type: ignore[arg-type]
    assert [learning_rate(step, settings) for step in range(1, 11)] == pytest.approx(
        [0.2 * step for step in range(1, 11)]
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    theirs = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=0.5),
        "linear": lambda: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.25, total_iters=40),
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
    }[schedule]()
    for step in range(10, 51):
        assert learning_rate(step, settings) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        theirs.step()


def test_adam_is_the_papers() -> None:
    """Its betas and epsilon (§5.3), and Adam's own formula for the first step: lr · sign of the gradient, nearly."""
    model = make_model()
    optimizer = make_optimizer(model, TrainSettings(optimizer="adam", lr=0.1))
    assert type(optimizer) is torch.optim.Adam
    assert all(group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 for group in optimizer.param_groups)
    given = make_optimizer(model, TrainSettings(betas=(0.5, 0.6), eps=1e-3))
    assert all(group["betas"] == (0.5, 0.6) and group["eps"] == 1e-3 for group in given.param_groups)


def test_only_matrices_decay() -> None:
    model = make_model()
    decayed, others = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    on, off = ({names[id(p)] for p in group["params"]} for group in (decayed, others))  # type: ignore[attr-defined]
    assert all(name.endswith("weight") and "norm" not in name for name in on)
    assert {name for name in off if "words" in name} and not {name for name in on if "words" in name}
    assert on | off == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_layers_learn_more_slowly_the_deeper_they_are() -> None:
    """Blocks 2, 1, 0 of both stacks at ½, ¼, ⅛ of the rate, what is below them at 1/16, the rest at the whole."""
    model = make_model()
    shares = {
        name: group["share"]
        for group in parameter_groups(model, 0.1, layer_decay=0.5)
        for name, parameter in model.named_parameters()
        if any(parameter is one for one in group["params"])  # type: ignore[attr-defined]
    }
    for name, share in shares.items():
        if ".blocks." in name:
            assert share == 0.5 ** (3 - int(name.split(".blocks.")[1][0]))
        else:
            assert share == (0.5**4 if ".inputs." in name else 1.0)
    assert set(shares) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(set(shares.values())) >= 4


def test_a_rate_is_a_number() -> None:
    assert all(math.isfinite(learning_rate(1, TrainSettings(steps=1, warmup_steps=warmup))) for warmup in (0, 1, 5))
