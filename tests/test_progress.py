"""Progress in a log or a pipe: a line at least every ten seconds, and none for work that is done at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyformer import progress
from anyformer.cli.main import main
from anyformer.tasks import find


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "perf_counter", clock)
    return clock


@pytest.mark.parametrize("stride", [1, 7, 1000])
def test_a_line_every_ten_seconds(stride: int, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the work is reported one by one or many at a time, and however long a tenth takes."""
    lines = []
    with progress.progress_bar("Preparing") as show:
        for done in range(stride, 100_001, stride):
            clock.now += 0.01 * stride  # a thousand seconds in all
            show(done, 100_000, f"{clock.now:.2f}")
            lines += [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    gaps = [after - before for before, after in zip([0.0, *lines], lines, strict=False)]
    assert max(gaps) <= 10.001 + 0.01 * stride and min(gaps) > 0.5
    assert lines[-1] > 990


def test_tenths_of_what_takes_a_few_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("Preparing") as show:
        for done in range(3, 90, 3):
            clock.now += 1.5
            show(done, 87)
    lines = capsys.readouterr().out.splitlines()
    assert 10 <= len(lines) <= 11 and lines[-1].split() == ["Preparing", "100%"]


def test_nothing_is_said_of_quick_work(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("Preparing") as show:
        show(0, 0)
        for done in range(1, 11):
            show(done, 10)
    assert not capsys.readouterr().out


def test_eval_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error; the metrics alone are on standard output."""
    monkeypatch.setattr(progress, "MOST", 0.0)
    rows, kind = tmp_path / "rows.tsv", find("classify-text")
    rows.write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    kind.begin("bert-tiny", kind.read(rows)).save(tmp_path / "model")
    with pytest.raises(SystemExit):
        main(["eval", "classify-text", "--model", str(tmp_path / "model"), "--data", str(rows)])
    printed = capsys.readouterr()
    assert "classify-text on" in printed.err and "100%" in printed.err and "100%" not in printed.out
