"""What a run shows and leaves behind."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.tasks.base import Loss
from anyformer.training import energy, report
from anyformer.training.callbacks import Callback, CallbackList, Progress
from anyformer.training.display import Display, duration
from anyformer.training.distributed import Devices
from anyformer.training.loader import count_tokens
from anyformer.training.state import TrainState
from anyformer.training.step_metrics import MetricsReader, StepMetrics
from anyformer.training.throughput import flops_per_token
from anyformer.training.trainer import Trainer, train
from tests.training.toy import DeadError, Toy, settings


class Dies(Callback):
    def on_step_end(self, progress: Progress) -> None:
        if progress.step == 13:
            raise DeadError


def test_metrics_of_a_run_that_went_back_are_those_of_one_that_did_not(tmp_path: Path) -> None:
    """Every step once, in order, evaluations among them, even where the last line was cut short."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    for folder in (cut, whole):
        folder.mkdir()
    with pytest.raises(DeadError):
        train(Toy(), settings(), folder=cut, callback=CallbackList([report.MetricsFile(cut), Dies()]))
    with (cut / report.METRICS).open("a") as file:
        file.write('{"step": 14, "lo')
    train(Toy(), settings(), folder=cut, resume=True, callback=report.MetricsFile(cut))
    train(Toy(), settings(), folder=whole, callback=report.MetricsFile(whole))

    def rows(folder: Path) -> list[dict[str, object]]:
        found = [json.loads(line) for line in (folder / report.METRICS).read_text().splitlines()]
        return [
            {k: v for k, v in row.items() if "per_second" not in k and k not in ("waiting", "seconds")} for row in found
        ]

    assert rows(cut) == rows(whole)
    assert [row["step"] for row in rows(whole) if "split" not in row] == list(range(1, 21))
    assert [row["step"] for row in rows(whole) if row.get("split") == "valid"] == [7, 14, 20]
    assert all("loss" in row for row in rows(whole))


def test_the_report_is_a_page_with_a_curve_for_each_figure(tmp_path: Path) -> None:
    train(Toy(), settings(), folder=tmp_path, callback=report.MetricsFile(tmp_path))
    path = report.write_report(tmp_path, "a <b>", ["line one"], {"train.steps": 20})
    page = path.read_text()
    curves = re.findall(r"<figure>.*?</figure>", page)
    names = [ElementTree.fromstring(curve)[0].text or "" for curve in curves]
    assert {name.split(":")[0] for name in names} >= {"valid loss", "training loss", "training lr"}
    assert "a &lt;b&gt;" in page and "line one" in page and "train.steps" in page and "http" not in page


def test_a_curve_goes_where_its_points_are() -> None:
    """The lowest value stands lowest, steps go from left to right."""
    svg = ElementTree.fromstring(report.draw("x", [(0, 1.0), (5, 3.0), (10, 2.0)]))
    places = svg.find(".//polyline").get("points")  # type: ignore[union-attr]
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in str(places).split())
    assert x0 < x1 < x2 and math.isclose(x1 - x0, x2 - x1) and y1 < y2 < y0
    assert "polyline" in report.draw("flat", [(3, 1.0)])


def test_plain_lines_where_nobody_looks_live(capsys: pytest.CaptureFixture[str]) -> None:
    toy = Toy()
    train(toy, settings(steps=40), callback=Display(toy.model, torch.device("cpu"), "loss"))
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if re.match(r"step [\d,]+/40 ", line)]
    assert 20 <= len(steps) <= 22
    for part in (r"loss [\d.]+", r"[\d,]+ tokens/s", r"[\d.]+ GB", r"padding [\d.]+%", r"\d+ s left"):
        assert re.search(part, steps[-1]), part
    assert sum("signature toy" in line for line in lines) == len(range(7, 41, 7)) + 1
    assert "\x1b" not in "".join(lines)


class SlowStart(Toy):
    """Its first step sets things up, for a second."""

    started = False

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        time.sleep(0 if self.started else 1)
        self.started = True
        return super().loss(batch)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are there a step later, as on a GPU."""

    def ready(readout: MetricsReader, everything: bool = False) -> Iterator[StepMetrics]:
        while len(readout.pending) > (0 if everything else 1):
            yield readout.pending.pop(0).read()

    monkeypatch.setattr(MetricsReader, "ready", ready)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("live", [False, True])
def test_nothing_is_shown_before_there_are_figures(
    live: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No loss that is no number, no padding of 100%; and what the first step took says nothing of the others."""
    toy, lines = SlowStart(), []
    display = Display(toy.model, torch.device("cpu"), "loss")
    plain = Display.line

    def line(self: Display, progress: Progress) -> str:
        lines.append((progress.step, plain(self, progress)))
        return lines[-1][1]

    monkeypatch.setattr(Display, "line", line)
    if live:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
    train(toy, settings(steps=100, eval_every=0), callback=display)
    shown = capsys.readouterr().out
    assert "nan" not in shown and "100.0%" not in shown
    before = [text for step, text in lines if step == 1]
    assert before == ([""] if live else []), "its figures come with the next step"
    timed = [(step, text) for step, text in lines if "left" in text]
    assert timed[0][0] == 3 and all(re.search(r"loss [\d.]+  [\d,]+ tokens/s", text) for _, text in timed)
    left = re.search(r"(?:(\d+) min )?(\d+) s left", timed[0][1])
    assert left is not None and 60 * int(left[1] or 0) + int(left[2]) < 50, "by the first step it would be 97 s"


@pytest.mark.usefixtures("late")
def test_a_run_that_goes_on_waits_for_figures_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = Toy()
    with pytest.raises(DeadError):
        train(Toy(), settings(steps=100), folder=tmp_path, callback=Dies())
    train(toy, settings(steps=100), folder=tmp_path, resume=True, callback=Display(toy.model, torch.device("cpu"), "x"))
    lines = [line for line in capsys.readouterr().out.splitlines() if re.match(r"step [\d,]+/100 ", line)]
    assert lines[0].startswith("step 13/100 ") and "tokens/s" in lines[0] and "left" in lines[0]


def test_no_more_time_is_left_than_the_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float | None] = []
    state = train(Toy(), settings(steps=10), on_step=lambda progress: seen.append(progress.seconds_left))
    assert seen[0] is None and all(left is not None for left in seen[1:]) and seen[-1] == 0
    progress = Progress(10**9, state, max_minutes=1.0)
    for step in (11, 12):
        state.step = step
        progress.update(StepMetrics(step, (), 0.0, 1.0, 5, 5, 1.0))
    state.seconds = 20.0
    assert progress.seconds_left == 40.0
    state.seconds = 70.0
    assert progress.seconds_left == 0.0


def test_a_live_line_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    toy = Toy()
    train(toy, settings(), callback=Display(toy.model, torch.device("cpu"), "loss"))
    assert "step 7  evaluated: loss" in capsys.readouterr().out


def test_durations() -> None:
    assert [duration(s) for s in (5, 75, 3700)] == ["5 s", "1 min 15 s", "1 h 1 min"]


def test_padding_is_the_share_of_empty_slots() -> None:
    toy = Toy()
    state = train(toy, settings(steps=6, eval_every=0))  # one epoch: 24 rows of 8, 7 and 6 of 8 slots
    assert (state.tokens, state.slots) == (8 * (8 + 7 + 6), 24 * 8)
    assert Progress(1, state).padding == pytest.approx(1 / 8)


def test_what_counts_as_a_token() -> None:
    ids, mask = torch.ones(2, 4, dtype=torch.long), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    labels = torch.tensor([[5, 6, -100], [5, -100, -100]])
    assert count_tokens({"input_ids": ids}) == (8, 8)
    assert count_tokens({"input_ids": ids, "attention_mask": mask}) == (5, 8)
    assert count_tokens({"input_ids": ids, "attention_mask": mask, "labels": labels}) == (5 + 3, 8 + 6)
    assert count_tokens({"input_ids": ids, "decoder_input_ids": labels.abs(), "labels": labels}) == (8 + 3, 8 + 6)
    assert count_tokens({"pixel_values": torch.zeros(3, 3, 8, 8)}) == (3, 3)


def test_operations_are_six_for_each_weight_that_multiplies() -> None:
    """GPT-2: its 124,439,808 parameters less positions, biases and norms, the tied table once."""
    model = af.build("gpt2-tiny").eval()  # 2 layers of width 64, 256 words
    assert flops_per_token(model) == 6 * (2 * 12 * 64**2 + 256 * 64)


def test_energy_is_an_estimate_without_codecarbon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    meter = energy.EnergyMeter(torch.device("cpu"))
    assert "an estimate" in meter.how and meter.watts == torch.get_num_threads() * 10
    engine = Trainer(Toy(), settings(), Devices(torch.device("cpu")), tmp_path, meter=meter)
    state = engine.run()
    assert 0 < state.energy <= meter.read()
    second = energy.EnergyMeter(torch.device("cpu"))
    again = Trainer(Toy(), settings(steps=25), Devices(torch.device("cpu")), tmp_path, meter=second)
    assert again.run(resume=True).energy > state.energy, "what went before counts"


@pytest.mark.parametrize(("mode", "how"), [("intel_rapl", "measured by"), ("cpu_load", "codecarbon's estimate")])
def test_codecarbon_measures_where_it_can(monkeypatch: pytest.MonkeyPatch, mode: str, how: str) -> None:
    """Counters are read; a guess from the load is called one."""

    class Energy:
        kWh = 0.25  # noqa: N815

    class Processor:
        _mode = mode

    class Tracker:
        def __init__(self, **options: object) -> None:
            assert options["save_to_file"] is False
            self._total_energy, self._hardware = Energy(), [Processor()]

        def start(self) -> None: ...

        def flush(self) -> None: ...

        def stop(self) -> None: ...

    class Module:
        OfflineEmissionsTracker = Tracker

    monkeypatch.setitem(sys.modules, "codecarbon", Module)  # type: ignore[arg-type]
    meter = energy.EnergyMeter(torch.device("cpu"))
    assert meter.how.startswith(how) and meter.read() == 0.25


class Card:
    """A fake of pynvml with one card, whose counter says what it is told to."""

    def __init__(self, **missing: bool) -> None:
        self.drawn, self.open, self.missing = 5_000_000, 0, missing  # thousandths of a joule

    def nvmlInit(self) -> None:  # noqa: N802
        if self.missing.get("driver"):
            raise RuntimeError("Driver Not Loaded")
        self.open += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid == "GPU-1234"
        return "the card"

    def nvmlDeviceGetTotalEnergyConsumption(self, card: str) -> int:  # noqa: N802
        assert card == "the card" and self.open == 1
        if self.missing.get("counter"):
            raise RuntimeError("Not Supported")
        return self.drawn

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that PyTorch says is a known GPU."""

    class Properties:
        uuid = "1234"

    monkeypatch.setitem(sys.modules, "codecarbon", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    return torch.device("cuda", 0)


def test_a_card_that_counts_is_asked(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when the meter was made; the processor beside it is still an estimate."""
    card = Card()
    monkeypatch.setitem(sys.modules, "pynvml", card)  # type: ignore[arg-type]
    meter = energy.EnergyMeter(gpu)
    cores = torch.get_num_threads()
    assert meter.how.startswith("measured by the GPU's counter")
    assert f"{cores} CPU core" in meter.how and "H200" not in meter.how and meter.watts == cores * 10
    card.drawn += 7_200_000_000  # 7.2 MJ are 2 kWh
    meter.started -= 3600
    assert meter.read() == pytest.approx(2 + cores * 0.01, rel=1e-3)
    card.missing["counter"] = True
    assert meter.read() == pytest.approx(2 + cores * 0.01, rel=1e-3), "it stands still"
    meter.stop()
    assert card.open == 0
    assert "2.01 kWh (measured by the GPU's counter" in energy.describe(2.01, meter.how)[0]


@pytest.mark.parametrize("missing", ["library", "driver", "counter"])
def test_a_card_that_does_not_count_is_an_estimate(
    missing: str, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = None if missing == "library" else Card(**{missing: True})
    monkeypatch.setitem(sys.modules, "pynvml", card)  # type: ignore[arg-type]
    meter = energy.EnergyMeter(gpu)
    assert meter.how.startswith("an estimate: NVIDIA H200 at 700 W, ")
    assert meter.watts == 700 + torch.get_num_threads() * 10
    meter.stop()


def test_without_a_gpu_no_card_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    monkeypatch.setitem(sys.modules, "pynvml", Card())  # type: ignore[arg-type]
    assert energy.EnergyMeter(torch.device("cpu")).how.startswith("an estimate: ")


def test_the_yardsticks() -> None:
    """1,984 lb are 899.9 kg, which at 0.48 kg take 1,874.9 kWh: as much as the flight."""
    lines = energy.describe(1984 * 0.45359237 / 0.48, "an estimate")
    assert "1.87e+03 kWh (an estimate), about 900 kg" in lines[0]
    assert lines[1].startswith("100% of") and "1,984 lb" in lines[1]
    assert "18% of" in lines[2] and "11,023 lb" in lines[2]
    assert "5% of" in lines[3] and "36,156 lb" in lines[3]
    assert "2% of" in lines[4] and "126,000 lb" in lines[4]
    assert "of the CO2 of an architecture search" in lines[5] and "626,155 lb" in lines[5]

    assert energy.describe(0.0, "")[1].startswith("0 ") and energy.describe(0.002, "")[1].startswith("1/937,000 of")


def test_the_summary_has_what_a_user_wants() -> None:
    state = TrainState(step=20, best=0.5, best_step=14, tokens=1234, seconds=75.0, energy=0.01)
    shown = "\n".join(report.summary(state, "bleu", "tokens", "an estimate", "anyformer run translate --model x"))
    for words in ("best bleu: 0.5, at step 14", "1,234 tokens in 1 min 15 s", "0.01 kWh", "anyformer run translate"):
        assert words in shown
