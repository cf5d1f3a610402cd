"""The fuzzer finds what it should find, and finds nothing in a minute of the library."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import anyformer as af
from tests.fuzz import campaign as campaign_module
from tests.fuzz.campaign import Campaign, Report
from tests.fuzz.targets import Target

ROOT = Path(__file__).parents[2]


def make(folder: Path, fixed: Path) -> None:
    (folder / "x.json").write_text('{"a": [1, 2, {"b": "c"}]}')


def whole(folder: Path) -> bool:
    file = folder / "x.json"
    return file.is_file() and file.stat().st_size < 1000 and file.read_bytes().count(b"[") == 1


def refuse(folder: Path, fixed: Path, chance: Random) -> None:
    if not whole(folder):
        raise af.Error("x.json is not what it should be.")


def fail(folder: Path, fixed: Path, chance: Random) -> None:
    if not whole(folder):
        raise KeyError("planted")


def hang(folder: Path, fixed: Path, chance: Random) -> None:
    if folder.parent.name.startswith("case-"):
        time.sleep(600)


def die(folder: Path, fixed: Path, chance: Random) -> None:
    if folder.parent.name.startswith("case-"):
        os._exit(3)


def swell(folder: Path, fixed: Path, chance: Random) -> None:
    if folder.parent.name.startswith("case-"):
        bytearray(campaign_module.ADDRESSES * 2)


def run(act: object, count: int) -> Report:
    campaign = Campaign([Target("planted", make, act)], seed=1)  # type: ignore[arg-type]
    try:
        return campaign.go(None, count)
    finally:
        campaign.close()


def test_refusals_are_no_problem() -> None:
    report = run(refuse, 40)
    assert report.results == 40 and report.refused > 5 and not report.problems


def test_an_exception_is_found_and_can_be_replayed() -> None:
    report = run(fail, 40)
    assert {one.problem for one in report.problems} == {"KeyError: \"'planted'\""}
    assert f"--replay planted:1:{report.problems[0].number}" in report.text()
    campaign = Campaign([Target("planted", make, fail)], seed=1)
    assert campaign.run("planted", report.problems[0].number).done == report.problems[0].done
    campaign.close()


def test_a_hang_a_death_and_a_flood_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_module, "PATIENCE", 0.5)
    for act, problem in ((hang, "hang"), (die, "the process died"), (swell, "MemoryError")):
        report = run(act, 2)
        assert report.results == 2 and [one.problem.startswith(problem) for one in report.problems] == [True] * 2


def test_a_message_that_is_long_or_plays_with_the_terminal_is_found() -> None:
    class Loud(af.Error):
        """As an error was before messages were made safe in one place."""

        def __str__(self) -> str:
            return "\x1b[2J"

    def speak(folder: Path, fixed: Path, chance: Random) -> None:
        if folder.parent.name.startswith("case-"):
            raise Loud("x")

    assert [one.problem[:8] for one in run(speak, 1).problems] == ["message:"]


def test_a_minute_of_mutations() -> None:
    """The targets that stand for all others, a fixed seed: nothing but results and af.Error.

    A problem is printed with the command that repeats it. In a process of its own, which has no threads when it forks.
    """
    command = [sys.executable, "-m", "tests.fuzz", "--quick", "--seed", "0", "--mutations", "1200", "--seconds", "20"]
    paths = os.pathsep.join([str(Path(af.__file__).parents[1]), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[-8000:]
    assert "0 problems" in run.stdout and int(run.stdout.split(" mutations")[0].replace(",", "")) > 50
