"""Which tasks' steps look at values: found by watching one, and compared with what the tasks say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.core.host import no_host_sync
from anyformer.fast.host_sync import detect_host_syncs
from anyformer.fast.train_graph import graph_key
from anyformer.training import command
from anyformer.training.distributed import Devices
from anyformer.training.loader import DataPosition, DeviceBatch
from anyformer.training.trainer import Trainer
from tests.training.test_every_task import CASES, SETTINGS

CPU = torch.device("cpu")
EVEN = ("transcribe",)  # texts of uneven lengths, but for those that are made up here


def make_engine(task: str, folder: Path, device: torch.device = CPU, recipe: str | None = None, **more: Any) -> Trainer:
    """A run of a task that has not begun."""
    usual, name, content, _, settings = CASES[task]
    recipe = recipe or usual
    for file, inside in ({name: content.encode()} if isinstance(content, str) else content).items():
        (folder / file).write_bytes(inside)
    given = {**SETTINGS, **settings, **more}
    chosen = command.plan(command.TrainRequest(task, recipe, folder / name, folder / "out", given=given))
    devices = Devices(device)
    engine = Trainer(command.prepare(chosen, devices)[0], chosen.train, devices)
    engine.work.model.train()
    return engine


def shapes(engine: Trainer) -> set[Any]:
    """Of the batches of two epochs, without the last of each."""
    places = [DataPosition(n, i) for n in range(2) for i in range(max(len(engine.loader.epoch(n)) - 1, 1))]
    return {graph_key(engine.loader.next_batches(place, 1)[0][0]) for place in places[:12]}


def looked_at(engine: Trainer, fed: DeviceBatch, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By a whole step over a batch: operations that read values, and numpy, which no operation tells of."""
    engine.loader.wait_idle()  # other threads make the next batches by numpy
    with detect_host_syncs(CPU) as found, no_host_sync(), monkeypatch.context() as patch:
        plain = Tensor.numpy
        patch.setattr(Tensor, "numpy", lambda self, **how: found.append("numpy") or plain(self, **how))
        engine._whole(fed)
    return found


@pytest.mark.parametrize("task", CASES)
def test_a_steady_task_is_one_whose_step_could_be_recorded(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No operation that reads values, and batches of one shape."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    engine = make_engine(task, tmp_path)
    found = looked_at(engine, engine.loader.next_batches(DataPosition(), 1)[0][0], monkeypatch)
    assert engine.work.steady == (not found and len(shapes(engine)) == 1 and task not in EVEN), found


@pytest.mark.parametrize("recipe", ["sutskever-tiny", "bahdanau-tiny", "luong-tiny", "bytenet-tiny", "convs2s-tiny"])
def test_a_step_of_the_ancestors_could_be_recorded(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences of different lengths, whose ends the host is not asked for; the loss is the same."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    engine = make_engine("translate", tmp_path, recipe=recipe)
    fed = engine.loader.next_batches(DataPosition(), 1)[0][0]
    fed.batch["attention_mask"][0, -2:] = 0
    engine.work.model.eval()
    usual = engine.work.loss(fed.batch).total
    with no_host_sync():
        torch.testing.assert_close(engine.work.loss(fed.batch).total, usual)
    engine.work.model.train()
    assert not looked_at(engine, fed, monkeypatch)


def step_with(change: Any) -> list[str]:
    weight = torch.ones(3, requires_grad=True)
    with detect_host_syncs(CPU) as found:
        change(weight).sum().backward()
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w * 2, []),
        (lambda w: w * float(w.detach().sum()), ["_local_scalar_dense"]),
        (lambda w: w[w > 0], ["index by a mask", "index_put by a mask"]),
        (lambda w: w * torch.tensor(2.0), ["lift_fresh"]),
        (lambda w: w.masked_fill(w > 0, 1.0), []),
        (lambda w: w.repeat_interleave(torch.ones(3, dtype=torch.long)), ["repeat_interleave"]),
        (lambda w: w.repeat_interleave(torch.ones(3, dtype=torch.long), output_size=3), []),
        (lambda w: w.index_select(0, w.nonzero()[:, 0]), ["nonzero"]),
    ],
)
def test_what_counts_as_a_look(change: Any, said: list[str]) -> None:
    assert step_with(change) == said


def test_a_look_in_the_backward_pass() -> None:
    class Peek(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *above: Tensor) -> Tensor:
            return above[0] * float(above[0].sum())

    assert step_with(Peek.apply) == ["_local_scalar_dense"]
