"""The training loop and its parts, against the paper's formulas and PyTorch's own functions."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.train.data import even_batches
from anyformer.train.engine import Progress, TrainSettings, train
from anyformer.train.losses import next_token_loss, smoothed_cross_entropy
from anyformer.train.optim import adamw, decay_groups, inverse_sqrt, paper_peak

SMALL = {"n_layers": 1, "d_model": 32, "n_heads": 2, "d_hidden": 64, "vocab_size": 20, "dropout": 0.1}


def make_model(seed: int = 0) -> af.Model:
    torch.manual_seed(seed)
    return af.build("transformer-tiny", **SMALL)


def make_batch() -> dict[str, Tensor]:
    """Say the source backwards."""
    source = torch.randint(2, 20, (8, 6), generator=torch.Generator().manual_seed(0))
    said = source.flip(1)
    labels = said.clone()
    labels[:2, 4:] = -100
    return {"input_ids": source, "decoder_input_ids": F.pad(said[:, :-1], (1, 0)), "labels": labels}


def test_the_rate_is_the_papers() -> None:
    """lrate = d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), equation 3."""
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert inverse_sqrt(step, paper_peak(512, 4000), 4000) == pytest.approx(expected, rel=1e-12)


def test_adam_is_the_papers() -> None:
    optimizer = adamw(make_model(), lr=0.1)
    assert all(group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 for group in optimizer.param_groups)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_label_smoothing_is_the_cross_entropy_of_smoothed_labels(smoothing: float) -> None:
    logits, labels = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(0, 7, (3, 5))
    labels[0, 1:3] = -100
    real = labels != -100
    wanted = F.one_hot(labels[real], 7) * (1 - smoothing) + smoothing / 7
    expected = F.cross_entropy(logits[real], wanted)  # PyTorch's form for labels that are distributions
    assert smoothed_cross_entropy(logits, labels, smoothing).item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_loss_is_the_models_own_where_nothing_is_smoothed() -> None:
    model, batch = make_model(), make_batch()
    torch.testing.assert_close(next_token_loss(model, batch), model(**batch).loss)


def test_only_matrices_decay() -> None:
    model = make_model()
    decayed, others = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    on, off = ({names[id(p)] for p in group["params"]} for group in (decayed, others))  # type: ignore[attr-defined]
    assert all(name.endswith("weight") and "norm" not in name for name in on)
    assert {name for name in off if "words" in name} and not {name for name in on if "words" in name}
    assert on | off == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_one_batch_is_learned_by_heart() -> None:
    model, batch = make_model(), make_batch()
    seen: list[Progress] = []
    losses: list[float] = []

    def on_step(progress: Progress) -> None:
        seen.append(progress)
        losses.append(progress.loss)

    settings = TrainSettings(steps=200, lr=5e-3, warmup=20)
    train(model, itertools.repeat(batch), next_token_loss, settings, on_step)
    assert not model.training
    assert model(**batch).loss < 0.05 < 2.0 < losses[0]
    assert seen[-1].step == 200 and seen[-1].tokens == 200 * 44
    assert seen[-1].seconds_left == 0 and seen[-1].tokens_per_second > 0


def test_the_same_seed_gives_the_same_weights() -> None:
    def trained(seed: int) -> Tensor:
        model = make_model()
        settings = TrainSettings(steps=5, lr=1e-3, warmup=2, weight_decay=0.01, seed=seed)
        train(model, itertools.repeat(make_batch()), partial(next_token_loss, smoothing=0.1), settings)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2)), "the seed draws the dropout"


def test_gradients_are_clipped() -> None:
    """With a clip of nothing, nothing is learned; Adam alone would not care about the scale of a gradient."""
    model = make_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, [make_batch()], next_token_loss, TrainSettings(steps=1, lr=1e-3, warmup=1, clip=0.0))
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_batches_that_run_out_are_an_error() -> None:
    with pytest.raises(af.InputError, match="ran out after 2 of 5"):
        train(make_model(), [make_batch()] * 2, next_token_loss, TrainSettings(steps=5, lr=1e-3))
    with pytest.raises(af.ConfigError, match="steps is 0"):
        TrainSettings(steps=0, lr=1e-3)


def test_even_batches_have_rows_of_one_length_and_every_row_once_an_epoch() -> None:
    lengths = [3, 5, 3, 3, 5, 4, 3]
    batches = list(itertools.islice(even_batches(lengths, 2, seed=0), 8))
    assert all(len({lengths[row] for row in batch}) == 1 for batch in batches)
    assert sorted(row for batch in batches[:4] for row in batch) == list(range(7))
    again = list(itertools.islice(even_batches(lengths, 2, seed=0), 8))
    assert batches == again and batches[:4] != batches[4:]
