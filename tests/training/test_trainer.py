"""The training loop: what it computes, against PyTorch's own pieces; and what stops it, and how it goes on."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.errors import StoppedError
from anyformer.tasks.base import Loss
from anyformer.training.callbacks import Callback, Progress
from anyformer.training.optim import learning_rate
from anyformer.training.step import OutOfMemoryError
from anyformer.training.step_metrics import StepMetrics
from anyformer.training.trainer import DivergedError, train
from tests.training.toy import Toy, fingerprint, settings


class Notes(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.figures: list[StepMetrics] = []
        self.metrics: list[tuple[int, dict[str, float | str]]] = []
        self.said: list[str] = []

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        self.figures.append(metrics)

    def on_evaluate(self, progress: Progress, metrics: dict[str, float | str]) -> None:
        self.metrics.append((progress.step, metrics))

    def on_message(self, text: str) -> None:
        self.said.append(text)

    @property
    def losses(self) -> list[float]:
        return [figures.loss for figures in self.figures]


def test_it_learns() -> None:
    toy, notes = Toy(dropout=0.0), Notes()
    state = train(toy, settings(steps=150), callback=notes)
    assert not toy.model.training
    assert notes.losses[0] > 2.5 and notes.losses[-1] < 0.6
    assert state.step == 150 and state.tokens < state.slots
    assert [step for step, _ in notes.metrics] == [*range(7, 150, 7), 150]


def by_hand(toy: Toy, steps: int, accumulate: int = 1, clip: float = 1.0) -> list[float]:
    """The same run from PyTorch's own pieces: AdamW, mean loss over all that counts, clipping, one rate a step."""
    chosen = settings(steps=steps)
    matrices = [p for n, p in toy.model.named_parameters() if p.dim() > 1 and "words" not in n and "positions" not in n]
    others = [p for p in toy.model.parameters() if all(p is not matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    batches = [batch for epoch in range(20) for batch in toy.batches(epoch)]
    losses = []
    toy.model.train()
    for step in range(steps):
        rows = [row for batch in batches[step * accumulate : (step + 1) * accumulate] for row in batch]
        found = toy.loss(toy.collate(rows, torch.Generator()))
        adam.zero_grad()
        (found.total / found.count).backward()
        torch.nn.utils.clip_grad_norm_(toy.model.parameters(), clip)
        for group in adam.param_groups:
            group["lr"] = learning_rate(step + 1, chosen)
        adam.step()
        losses.append(float(found.total.detach() / found.count))
    return losses


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [1.0, 0.05])
def test_a_run_is_what_pytorch_computes(accumulate: int, clip: float) -> None:
    """In float64 to 1e-9: loss for loss. Batches that are added up count by their tokens, not each alike."""
    notes = Notes()
    chosen = settings(steps=8, gradient_accumulation=accumulate, weight_decay=0.1, max_grad_norm=clip)
    train(Toy(dropout=0.0, dtype=torch.float64), chosen, callback=notes)
    expected = by_hand(Toy(dropout=0.0, dtype=torch.float64), 8, accumulate, clip)
    assert notes.losses == pytest.approx(expected, rel=1e-9)
    assert all(figures.parts["again"] == pytest.approx(figures.loss) for figures in notes.figures)


def test_activation_checkpointing_changes_nothing_but_memory() -> None:
    toys = [Toy(), Toy()]
    for toy, recompute in zip(toys, (False, True), strict=True):
        train(toy, settings(gradient_checkpointing=recompute))
    assert fingerprint(toys[0].model) == fingerprint(toys[1].model)


def test_activation_checkpointing_keeps_less() -> None:
    """What is kept for the backward pass is counted where PyTorch keeps it."""

    def kept(recompute: bool) -> int:
        toy = Toy(dropout=0.0)
        toy.model.train()
        toy.model.stages["decoder"].stack.gradient_checkpointing = recompute
        sizes: list[int] = []

        def keep(value: Tensor) -> Tensor:
            sizes.append(value.numel())
            return value

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            toy.loss(toy.collate(range(4), torch.Generator()))
        return sum(sizes)

    assert kept(True) < 0.5 * kept(False)


def test_the_same_seed_gives_the_same_weights() -> None:
    def trained(seed: int) -> str:
        toy = Toy()
        train(toy, settings(seed=seed))
        return fingerprint(toy.model)

    assert trained(1) == trained(1)
    assert trained(1) != trained(2), "the seed draws the dropout"


def test_evaluating_and_saving_change_nothing(tmp_path: Path) -> None:
    often, never = Toy(), Toy()
    train(often, settings(eval_every=1, save_every=1, average_checkpoints=1), folder=tmp_path)
    train(never, settings(eval_every=0, save_every=0))
    assert fingerprint(often.model) == fingerprint(never.model)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns(precision: str) -> None:
    """Weights stay float32; the losses are near those of float32 and not the same."""
    half, whole, toy = Notes(), Notes(), Toy(dropout=0.0)
    train(toy, settings(precision=precision, steps=30), callback=half)
    train(Toy(dropout=0.0), settings(steps=30), callback=whole)
    assert toy.model.dtype == torch.float32
    assert half.losses != whole.losses and half.losses == pytest.approx(whole.losses, abs=0.15)


@pytest.mark.slow
def test_compiled_is_the_same() -> None:
    compiled, plain = Notes(), Notes()
    train(Toy(dropout=0.0), settings(compile=True, steps=6), callback=compiled)
    train(Toy(dropout=0.0), settings(steps=6), callback=plain)
    assert compiled.losses == pytest.approx(plain.losses, rel=1e-4)


def test_the_best_weights_are_the_result(tmp_path: Path) -> None:
    """The rate is far too high after a while: the last weights are not the best."""

    class Worse(Toy):
        def evaluate(self) -> dict[str, float | str]:
            found = super().evaluate()
            self.seen = [*getattr(self, "seen", []), (float(found["loss"]), fingerprint(self.model))]
            if len(self.seen) > 3:
                found["loss"] = float(found["loss"]) + 10
            return found

    toy, notes = Worse(), Notes()
    state = train(toy, settings(steps=50), folder=tmp_path, callback=notes)
    assert state.best_step == 21 and fingerprint(toy.model) == toy.seen[2][1]
    loaded = af.load(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), toy.model.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    ("metrics", "losses", "best"),
    [
        ((0.5, 0.5, 0.5), (3.0, 1.0, 2.0), 2),  # of equals the one with the lowest loss
        ((0.5, 0.5, 0.5), (2.0, 1.0, 1.0), 3),  # then the latest
        ((0.4, 0.5, 0.4), (1.0, 2.0, 0.5), 2),  # the metric counts first
        ((0.5, 0.5, 0.5), (2.0, math.nan, 3.0), 1),
        ((0.5, 0.5, 0.4), (None, None, None), 2),  # without a loss the latest
    ],
)
def test_ties_are_broken_by_the_loss_and_then_by_the_step(
    metrics: tuple[float, ...], losses: tuple[float | None, ...], best: int, tmp_path: Path
) -> None:
    class Tied(Toy):
        metric, larger_is_better = "accuracy", True
        seen: ClassVar[list[str]] = []

        def evaluate(self) -> dict[str, float | str]:
            number = len(self.seen)
            self.seen.append(fingerprint(self.model))
            loss = losses[number]
            return {"accuracy": metrics[number], **({} if loss is None else {"loss": loss})}

    Tied.seen.clear()
    toy = Tied()
    state = train(toy, settings(steps=3, eval_every=1, save_every=1), folder=tmp_path)
    assert state.best_step == best and fingerprint(toy.model) == Tied.seen[best - 1]


def test_early_stopping() -> None:
    class Flat(Toy):
        def evaluate(self) -> dict[str, float | str]:
            return {"loss": 1.0}

    notes = Notes()
    state = train(Flat(), settings(steps=500, eval_every=2, patience=3), callback=notes)
    assert state.step == 8 and state.best_step == 8  # of equals the latest, which does not count as better


def test_the_minutes_end_a_run_as_its_steps_do(tmp_path: Path) -> None:
    """The rate has come down by then, the folder is whole, and what was spent counts when the run continues."""
    notes, toy = Notes(), Toy()
    state = train(
        toy, settings(steps=1_000_000, eval_every=0, save_every=0, max_minutes=0.01), folder=tmp_path, callback=notes
    )
    assert 2 < state.step < 1_000_000 and state.evaluated == state.step and 0.6 <= state.seconds < 10
    rates = [figures.lr for figures in notes.figures]
    assert max(rates) > 0.5 * settings().lr and rates[-1] < 0.1 * max(rates)
    assert af.load(tmp_path).config == toy.model.config
    again = train(
        Toy(), settings(steps=1_000_000, eval_every=0, save_every=0, max_minutes=0.01), folder=tmp_path, resume=True
    )
    assert again.step == state.step


def test_the_moving_average_is_evaluated_and_kept(tmp_path: Path) -> None:
    """Of the weights after every step, as its formula says; the run itself goes on with its own weights."""
    decay, toy, plain = 0.8, Toy(), Toy()
    snapshots: list[list[Tensor]] = [[p.detach().clone() for p in plain.model.parameters()]]
    train(
        plain,
        settings(steps=9, eval_every=0),
        on_step=lambda _: snapshots.append([p.detach().clone() for p in plain.model.parameters()]),
    )
    train(toy, settings(steps=9, eval_every=4, ema_decay=decay), folder=tmp_path)
    expected = snapshots[0]
    for now in snapshots[1:]:
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, now, strict=True)]
    for found, wanted in zip(toy.model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), wanted, rtol=1e-5, atol=1e-7)


class Told(Toy):
    """Whose evaluations say what they are told to, and then zero."""

    def __init__(self, *said: float) -> None:
        super().__init__()
        self.said = list(said)

    def evaluate(self) -> dict[str, float]:  # type: ignore[override]
        return {"loss": self.said.pop(0) if self.said else 0.0}


def test_a_mean_that_is_worse_is_not_kept(tmp_path: Path) -> None:
    """Then the best weights are, and it is said."""
    toy, plain = Told(3.0, 1.0, 2.0, 1.5), Toy()  # after 7, 14 and 20 steps, and of the mean
    at: dict[int, list[Tensor]] = {}
    keep = lambda progress: at.update({progress.step: [p.detach().clone() for p in plain.model.parameters()]})  # noqa: E731
    train(plain, settings(eval_every=0), on_step=keep)
    notes = Notes()
    train(toy, settings(average_checkpoints=3), folder=tmp_path, callback=notes)
    for found, wanted in zip(toy.model.parameters(), at[14], strict=True):
        assert torch.equal(found.detach(), wanted)
    assert any("step 14, which are saved" in note for note in notes.said)


def test_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    toy, plain = Told(1.0, 1.0, 1.0, 1.0), Toy()
    at: dict[int, list[Tensor]] = {}
    keep = lambda progress: at.update({progress.step: [p.detach().clone() for p in plain.model.parameters()]})  # noqa: E731
    train(plain, settings(eval_every=0), on_step=keep)
    notes = Notes()
    train(toy, settings(average_checkpoints=3), folder=tmp_path, callback=notes)
    for i, found in enumerate(toy.model.parameters()):
        torch.testing.assert_close(found.detach(), (at[10][i] + at[15][i] + at[20][i]) / 3)
    assert notes.metrics[-1][1]["weights"] == "mean of 3"


def test_frozen_parameters_stay() -> None:
    toy = Toy()
    before = {name: value.clone() for name, value in toy.model.state_dict().items()}
    train(toy, settings(freeze=("decoder.blocks.0.*", "*words*"), weight_decay=0.1))
    for name, value in toy.model.state_dict().items():
        frozen = "blocks.0." in name or "words" in name
        assert torch.equal(value, before[name]) == frozen, name
    with pytest.raises(af.ConfigError, match=r'train\.freeze: .*"decoder"\. .*"decoder\.\*"'):
        train(Toy(), settings(freeze=("decoder",)))
    with pytest.raises(af.ConfigError, match=r"train\.freeze: .*"):
        train(Toy(), settings(freeze=("nothing",)))
    with pytest.raises(af.ConfigError, match=r"train\.freeze leaves"):
        train(Toy(), settings(freeze=("*",)))


class Spoiled(Toy):
    """One row gives a loss that is no number, or a huge one."""

    value = math.nan

    def loss(self, batch: dict[str, Tensor]) -> Loss:  # type: ignore[override]
        found = super().loss(batch)
        bad = 7 in self.collated[-4:]
        return Loss(found.total * (self.value if bad else 1.0), found.count)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e4])
def test_a_loss_that_is_no_number_names_its_rows(value: float, tmp_path: Path) -> None:
    toy = Spoiled(dropout=0.0)
    toy.value = value
    before: list[str] = []
    with pytest.raises(DivergedError) as error:
        train(toy, settings(save_every=1), folder=tmp_path, on_step=lambda _: before.append(fingerprint(toy.model)))
    said = str(error.value)
    assert "toy.txt, line 8" in said and "train.lr" in said
    assert fingerprint(toy.model) == before[-1], "the weights did not move"
    assert f"--resume continues from step {len(before)}" in said


def test_out_of_memory_says_what_to_lower() -> None:
    class Large(Toy):
        def loss(self, batch: dict[str, Tensor]) -> Loss:  # type: ignore[override]
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    with pytest.raises(OutOfMemoryError) as error:
        train(Large(), settings(batch_size=4))
    advice = ("train.batch_size=2", "train.gradient_accumulation=2", "data.max_length", "train.gradient_checkpointing")
    for words in ("4 rows", "[4, 8]", *advice):
        assert words in str(error.value)


def test_other_errors_are_not_called_out_of_memory() -> None:
    class Broken(Toy):
        def loss(self, batch: dict[str, Tensor]) -> Loss:  # type: ignore[override]
            raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        train(Broken(), settings())


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_goes_on(kind: signal.Signals, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 7:
            os.kill(os.getpid(), kind)

    with pytest.raises(StoppedError, match=r"step 7\b.*--resume .*step 7\b"):
        train(Toy(), settings(), folder=tmp_path, on_step=stop)
    toy, whole, notes = Toy(), Toy(), Notes()
    train(toy, settings(), folder=tmp_path, resume=True, callback=notes)
    train(whole, settings(), folder=tmp_path / "whole")
    assert fingerprint(toy.model) == fingerprint(whole.model)
    assert notes.said == ["Continuing from step 7."] and notes.figures[0].step == 8


def test_no_rows() -> None:
    with pytest.raises(af.InputError, match="no rows"):
        train(Toy(rows=0), settings())


def test_adapters_learn_and_the_folder_runs(tmp_path: Path) -> None:
    """The model's own matrices stay as they were until the adapters are made part of them; peft's folder is beside."""
    toy, notes = Toy(dropout=0.0), Notes()
    before = {name: value.clone() for name, value in toy.model.state_dict().items()}
    train(toy, settings(steps=60, lora=2, lr=3e-2), folder=tmp_path, callback=notes)
    assert sum(notes.losses[-6:]) < sum(notes.losses[:6])
    changed = {name for name, value in toy.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if ".blocks." in name and name.endswith("weight") and "norm" not in name}
    loaded = af.load(tmp_path).state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in toy.model.state_dict().items())
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_a_run_of_adapters_goes_on(tmp_path: Path) -> None:
    whole, cut = Toy(), Toy()
    train(whole, settings(lora=2), folder=tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(
            Toy(),
            settings(lora=2),
            folder=tmp_path / "cut",
            on_step=lambda p: os.kill(os.getpid(), signal.SIGINT) if p.step == 7 else None,
        )
    train(cut, settings(lora=2), folder=tmp_path / "cut", resume=True)
    assert fingerprint(whole.model) == fingerprint(cut.model)
