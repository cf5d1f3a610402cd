"""Checkpoints: whatever happens to the process or the disk, a run ends as if nothing had."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import anyformer as af
from anyformer.errors import StoppedError
from anyformer.training import checkpoint
from anyformer.training.callbacks import Progress
from anyformer.training.distributed import Devices
from anyformer.training.trainer import train
from tests.training.test_trainer import Notes
from tests.training.toy import DeadError, Toy, fingerprint, settings

ROOT = Path(__file__).parents[2]


def killed(folder: Path, kills: int, seed: int, *kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.kills", str(folder), str(kills), str(seed), *kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["kills"] >= kills
    assert set(found["hashes"]) == {found["never"]}, "bit for bit"
    assert not found["drafts"], "nothing half-written stays behind"


def test_killed_five_times(tmp_path: Path) -> None:
    killed(tmp_path, 5, 0)


def test_killed_five_times_with_memory_that_goes_on(tmp_path: Path) -> None:
    killed(tmp_path, 5, 0, "streams")


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path: Path) -> None:
    """At random moments, within saves and evaluations too."""
    killed(tmp_path, 100, 1)


def cut_off(folder: Path, step: int, **changes: object) -> None:
    """A run that died after a step."""

    def die(progress: Progress) -> None:
        if progress.step == step:
            raise DeadError

    with pytest.raises(DeadError):
        train(Toy(), settings(**changes), folder=folder, on_step=die)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{}, {"gradient_accumulation": 3}, {"ema_decay": 0.9}, {"precision": "fp16"}, {"optimizer": "adam"}]
)
def test_a_run_that_died_goes_on(tmp_path: Path, changes: dict[str, object]) -> None:
    cut_off(tmp_path / "cut", 13, **changes)
    toy, whole, notes = Toy(), Toy(), Notes()
    state = train(toy, settings(**changes), folder=tmp_path / "cut", resume=True, callback=notes)
    expected = train(whole, settings(**changes), folder=tmp_path / "whole")
    assert notes.said == ["Continuing from step 10."]
    assert fingerprint(toy.model) == fingerprint(whole.model)
    same = (
        "step",
        "epoch",
        "batch",
        "loss",
        "best",
        "best_step",
        "evals_without_improvement",
        "tokens",
        "slots",
        "scaler",
    )
    assert {name: getattr(state, name) for name in same} == {name: getattr(expected, name) for name in same}


def test_a_finished_run_is_finished_again(tmp_path: Path) -> None:
    """And goes on where more steps are asked for."""
    first, again, longer, whole = Toy(), Toy(), Toy(), Toy()
    train(first, settings(schedule="constant"), folder=tmp_path)
    train(again, settings(schedule="constant"), folder=tmp_path, resume=True)
    assert fingerprint(first.model) == fingerprint(again.model)
    train(longer, settings(steps=30, schedule="constant"), folder=tmp_path, resume=True)
    train(whole, settings(steps=30, schedule="constant"), folder=tmp_path / "whole")
    assert fingerprint(longer.model) == fingerprint(whole.model)


def cut_short(folder: Path) -> None:
    with (folder / checkpoint.TENSORS).open("r+b") as file:
        file.truncate(1000)


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / checkpoint.TENSORS).read_bytes())
    data[-40] ^= 1
    (folder / checkpoint.TENSORS).write_bytes(data)


def half_a_state(folder: Path) -> None:
    text = (folder / checkpoint.STATE).read_text()
    (folder / checkpoint.STATE).write_text(text[: len(text) // 2])


def another_state(folder: Path) -> None:
    text = (folder / checkpoint.STATE).read_text()
    (folder / checkpoint.STATE).write_text(text.replace('"step": 10', '"step": 11'))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut_short, "1,000 bytes"),
        (flip_a_bit, "tensors.safetensors"),
        (half_a_state, "state.json"),
        (another_state, "state.json"),
        (lambda folder: (folder / checkpoint.TENSORS).unlink(), "tensors.safetensors is missing"),
    ],
)
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(
    damage: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    cut_off(tmp_path, 13)
    damage(tmp_path / "checkpoints" / "step-00000010")
    toy, whole, notes = Toy(), Toy(), Notes()
    train(toy, settings(), folder=tmp_path, resume=True, callback=notes)
    assert "step-00000010" in notes.said[0] and why in notes.said[0]
    assert "step 5." in notes.said[1]
    train(whole, settings(), folder=tmp_path / "whole")
    assert fingerprint(toy.model) == fingerprint(whole.model)


@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, half_a_state, shutil.rmtree])
def test_best_weights_that_the_disk_lost_are_not_taken(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """The last ones are, and it is said; the model is not filled with what was left."""

    class Worsens(Toy):
        evaluations = 0

        def evaluate(self) -> dict[str, float | str]:
            self.evaluations += 1
            return {"loss": float(self.evaluations)}

    class Spoils(Notes):
        def on_evaluate(self, progress: Progress, metrics: dict[str, float | str]) -> None:
            if progress.step == 20:
                damage(tmp_path / "checkpoints" / "best-00000007")

    toy, last, notes = Worsens(), Toy(), Spoils()
    train(toy, settings(), folder=tmp_path, callback=notes)
    train(last, settings(eval_every=0))
    assert fingerprint(toy.model) == fingerprint(last.model)
    assert "step 7, " in notes.said[-1] and "best" in notes.said[-1]


def test_a_mean_does_not_depend_on_where_a_run_was_stopped(tmp_path: Path) -> None:
    """What is saved when somebody presses Ctrl-C is none of the checkpoints that the mean is of."""

    def press(progress: Progress) -> None:
        if progress.step in (12, 18):
            os.kill(os.getpid(), signal.SIGINT)

    whole, cut = Toy(), Toy()
    mean = settings(average_checkpoints=3)
    train(whole, mean, folder=tmp_path / "whole")
    for resume in (False, True):
        with pytest.raises(StoppedError):
            train(Toy(), mean, folder=tmp_path / "cut", on_step=press, resume=resume)
    train(cut, mean, folder=tmp_path / "cut", resume=True)
    assert fingerprint(whole.model) == fingerprint(cut.model)


def test_all_damaged(tmp_path: Path) -> None:
    cut_off(tmp_path, 13)
    for folder in (tmp_path / "checkpoints").glob("step-*"):
        cut_short(folder)
    with pytest.raises(af.FolderError, match=r"checkpoints .*--resume"):
        train(Toy(), settings(), folder=tmp_path, resume=True)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    cut_off(tmp_path, 13)
    toy = Toy()
    toy.model = af.build("gpt2-tiny").eval()
    with pytest.raises(af.FolderError, match=r"step-0{5}\d+ .*model"):
        train(toy, settings(), folder=tmp_path, resume=True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_no_more(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that could not be saved, why, and where the run can go on from; the one before stays whole."""
    write, calls = checkpoint.write_safetensors, [0]

    def write_safetensors(*args: object) -> None:
        calls[0] += 1
        if calls[0] > 3:  # step 5, best 7, step 10; then best 14
            raise OSError(code, os.strerror(code))
        write(*args)

    monkeypatch.setattr(checkpoint, "write_safetensors", write_safetensors)
    with pytest.raises(af.FolderError) as error:
        train(Toy(), settings(), folder=tmp_path)
    assert os.strerror(code) in str(error.value) and "step 10" in str(error.value)
    monkeypatch.undo()
    assert not list(tmp_path.rglob(".draft-*"))
    toy, whole = Toy(), Toy()
    train(toy, settings(), folder=tmp_path, resume=True)
    train(whole, settings(), folder=tmp_path / "whole")
    assert fingerprint(toy.model) == fingerprint(whole.model)


def test_what_is_kept(tmp_path: Path) -> None:
    train(Toy(), settings(steps=33, keep_checkpoints=3), folder=tmp_path)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert [name for name in names if name.startswith("step")] == ["step-00000025", "step-00000030", "step-00000033"]
    assert 1 <= len([name for name in names if name.startswith("best")]) <= 3
    assert all(name.startswith(("step", "best")) for name in names)
    with safe_open(tmp_path / "checkpoints" / "step-00000033" / checkpoint.TENSORS, framework="pt") as file:
        assert {name.split("/")[0] for name in file.keys()} == {"model", "optimizer"}  # noqa: SIM118


def test_two_are_kept_of_a_run_that_is_stopped_again_and_again(tmp_path: Path) -> None:
    """Before its first regular checkpoint too: the last one may be damaged."""
    store = checkpoint.CheckpointStore(tmp_path, Devices(torch.device("cpu")), keep=2, every=1000)
    for step in (300, 600, 900):
        store.write("step", step, {"x": torch.zeros(1)}, {"best_step": 0})
        store.tidy()
    assert [one.step for one in store.found("step")] == [900, 600]


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*args: object, **options: object) -> None:
        raise AssertionError("pickled")

    for module, name in ((torch, "save"), (torch, "load")):
        monkeypatch.setattr(module, name, no)
    cut_off(tmp_path, 7)
    train(Toy(), settings(), folder=tmp_path, resume=True)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".json", ".safetensors"}
