"""What may befall the folder of a run: killed, started twice, damaged, removed, full of other things."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from anyformer.training import command
from anyformer.training.checkpoint import STATE, TENSORS
from anyformer.training.run_folder import LOCK, RECORD, START, hold_folder
from anyformer.training.trainer import Trainer
from tests.faults import count_operations, kill_at
from tests.training.test_command import QUICK, _own_cache, run, table, weights

__all__ = ["_own_cache", "table"]  # fixtures
ROOT = Path(__file__).parents[2]
TRAIN = ["train", "classify-text", "--recipe", "bert-tiny", *QUICK, "--set=save_every=2", "--set=steps=6"]


class DeadError(BaseException):
    """Ends a run as a kill does: nothing handles it."""


def cut_off(table: Path, out: str, patch: pytest.MonkeyPatch, step: int = 5) -> None:
    take = Trainer.step

    def die(engine: Trainer) -> None:
        take(engine)
        if engine.state.step == step:
            raise DeadError

    with patch.context() as inner:
        inner.setattr(Trainer, "step", die)
        with pytest.raises(DeadError):
            main([*TRAIN, "--data", str(table), "--out", out])


def end(out: str, table: Path, *more: str) -> int:
    return run(*TRAIN, "--data", table, "--out", out, *more)


def checkpoints(out: str) -> Path:
    return Path(out) / "checkpoints"


# Starting and continuing with one command


def test_resume_starts_a_run_and_continues_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("empty").mkdir()
    for out in ("absent", "empty"):
        assert end(out, table, "--resume") == 0
        assert json.loads(Path(out, RECORD).read_text())["settings"]["train.steps"] == 6
    cut_off(table, "cut", monkeypatch)
    assert end("cut", table, "--resume") == 0
    whole = weights(Path("absent"))
    assert all(torch.equal(value, whole[name]) for name, value in weights(Path("cut")).items())
    assert end("cut", table, "--resume") == 0, "a finished run is finished again"


def test_resume_refuses_a_folder_of_something_else(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos").mkdir()
    Path("photos", "cat.jpg").write_text("")
    assert end("photos", table, "--resume") == 2 and "photos" in capsys.readouterr().err
    assert end("photos", table, "--resume", "--dry-run") == 2


def test_a_dry_run_of_a_run_that_is_not_there(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert end("absent", table, "--resume", "--dry-run") == 0 and "train" in capsys.readouterr().out
    assert not Path("absent").exists()


RESTARTED = """
import os, signal, sys
from anyformer.cli.main import main
from anyformer.training.checkpoint import CheckpointStore

write = CheckpointStore.write

def dying(store, kind, step, *rest):
    path = write(store, kind, step, *rest)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and (kind, step, os.environ["RANK"]) == ("step", 4, sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return path

CheckpointStore.write = dying
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_torchrun_restarts(rank: str, table: Path) -> None:
    """A process that dies is started again by torchrun, with the same command, and the run ends as if it had not."""
    Path("dying.py").write_text(RESTARTED)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    order = [*TRAIN, "--data", str(table), "--set=model.dropout=0", "--set=model.attention_dropout=0"]
    ran = subprocess.run(
        [*torchrun, "dying.py", rank, *order, "--out", "mine", "--resume"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Continuing from step 4.") == 1
    assert run(*order, "--out", "one") == 0
    one, two = weights(Path("one")), weights(Path("mine"))
    assert all(torch.allclose(two[name], one[name], rtol=1e-4, atol=1e-6) for name in one)


# One run a folder


def test_a_folder_takes_one_run_at_a_time(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--resume"]):
        with hold_folder(Path("mine")):
            assert end("mine", table, *more) == 2
        said = capsys.readouterr().err
        assert f"mine (process {os.getpid()} on " in said and "--out" in said
        assert not Path("mine").exists(), "a run that wrote nothing leaves nothing"
    assert end("mine", table) == 0 and not Path("mine", LOCK).exists()


def test_the_lock_dies_with_its_process(table: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with hold_folder(Path("mine")):
            os.write(writer, b"held")
            signal.pause()
    assert os.read(reader, 4) == b"held"
    with pytest.raises(af.FolderError, match=rf"process {child} on "):
        af.train("classify-text", recipe="bert-tiny", data=table, out="mine", steps=2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert Path("mine", LOCK).exists()
    assert end("mine", table) == 0


def test_the_ranks_of_torchrun_share_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_folder(Path("mine")):
        monkeypatch.setenv("RANK", "1")
        with hold_folder(Path("mine")):
            assert Path("mine", LOCK).exists()


def test_checkpoints_of_another_run_are_not_used(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in ("one", "other"):
        cut_off(table, out, monkeypatch)
    runs = [json.loads(Path(out, RECORD).read_text())["run"] for out in ("one", "other")]
    assert runs[0] != runs[1]
    state = json.loads((checkpoints("one") / "step-00000004" / STATE).read_text())
    assert state["run"] == runs[0]
    shutil.copytree(checkpoints("other") / "step-00000004", checkpoints("one") / "step-00000005")
    shutil.copytree(checkpoints("other") / "step-00000002", checkpoints("one") / "step-00000001")
    assert end("one", table, "--resume") == 0
    said = capsys.readouterr().out
    assert "step-00000005 belongs to another run" in said and "from step 4." in said
    assert {"step-00000001", "step-00000005"} <= {path.name for path in checkpoints("one").iterdir()}, (
        "not ours to remove"
    )


# Odd things in the folder


def test_other_folders_beside_checkpoints(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(table, "mine", monkeypatch)
    for name in ("step-backup", "best-", "step-00000002-copy"):
        (checkpoints("mine") / name).mkdir()
    assert end("mine", table, "--resume") == 0
    assert (checkpoints("mine") / "step-backup").is_dir() and (checkpoints("mine") / "best-").is_dir()


def no_format(path: Path) -> None:
    state = json.loads((path / STATE).read_text())
    del state["format"]
    (path / STATE).write_text(json.dumps(state))


@pytest.mark.parametrize(
    "spoil",
    [
        no_format,
        lambda path: (path / STATE).write_text("[]"),
        lambda path: (path / STATE).write_text("3"),
        lambda path: (path / STATE).write_text("[" * 100_000),
    ],
)
def test_a_state_that_is_not_one(
    spoil: Callable[[Path], None], table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(table, "mine", monkeypatch)
    spoil(checkpoints("mine") / "step-00000004")
    assert end("mine", table, "--resume") == 0
    said = capsys.readouterr().out
    assert "step-00000004 is damaged" in said and "from step 2." in said


def test_the_advice_when_all_checkpoints_are_damaged(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the error says to do can be done."""
    cut_off(table, "mine", monkeypatch)
    for path in checkpoints("mine").glob("step-*"):
        (path / TENSORS).write_bytes(b"")
    assert end("mine", table, "--resume") == 2
    said = capsys.readouterr().err
    assert "checkpoints can be used" in said and "--resume" in said
    shutil.rmtree(checkpoints("mine"))
    assert end("mine", table, "--resume") == 0


@pytest.mark.parametrize("every", ["log_every=1", "log_every=1000"])
def test_a_folder_that_is_removed_while_it_is_written_to(
    every: str, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take = Trainer.step

    def remove(engine: Trainer) -> None:
        if engine.state.step == 3:
            shutil.rmtree("mine")
        take(engine)

    monkeypatch.setattr(Trainer, "step", remove)
    assert end("mine", table, f"--set={every}") == 2
    assert " was removed during the run" in capsys.readouterr().err
    assert not Path("mine").exists(), "it does not come back"


def test_other_versions_are_said(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(table, "mine", monkeypatch)
    record = json.loads(Path("mine", RECORD).read_text())
    record["versions"]["torch"] = "1.0"
    Path("mine", RECORD).write_text(json.dumps(record))
    with pytest.warns(UserWarning, match=r"torch 1\.0 .*torch 2"):
        assert end("mine", table, "--resume") == 0


def test_permissions_follow_the_umask(table: Path) -> None:
    before = os.umask(0o027)
    try:
        assert end("mine", table) == 0
    finally:
        os.umask(before)
    for path in Path("mine").rglob("*"):
        expected = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_a_run_killed_while_it_begins(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every file operation of the first files that it writes: the same command then starts or continues it, and
    nothing half-written stays behind."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    order = [*TRAIN, "--data", str(table), "--set=steps=1", "--resume", "--out"]
    assert run(*order, "whole") == 0

    class BegunError(Exception):
        pass

    def begun(*_: Any) -> None:
        raise BegunError

    def begin(out: str) -> None:
        command.train_job = begun  # type: ignore[assignment]  # in a fork
        with contextlib.suppress(BegunError, SystemExit):
            main([*order, out])

    steps = count_operations(lambda: begin("counted"), within="counted")
    assert steps > 10
    for at in range(1, steps + 1):
        kill_at(at, lambda: begin("mine"), torn=at % 2 == 0, within="mine")
        assert run(*order, "mine") == 0
        left = [path.name for path in Path("mine").rglob(".*")]
        assert not left and Path("mine", START, "tokenizer.json").exists()
        shutil.rmtree("mine")
