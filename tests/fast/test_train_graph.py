"""Recorded steps: which ones may be, and that a run of them is the run without. Without a GPU a recording replays by
running the step again on its fixed inputs; the tests at the end need one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.core.host import no_host_sync
from anyformer.fast import train_graph
from anyformer.fast.train_graph import (
    KEPT,
    SMALL,
    WARM,
    CapturedStep,
    PaddingPlan,
    StepCapturer,
    can_capture_steps,
    capture_obstacle,
    graph_key,
    why_not_captured,
)
from anyformer.tasks import find
from anyformer.tasks.base import Loss
from anyformer.training.callbacks import Progress
from anyformer.training.distributed import Devices
from anyformer.training.loader import DataPosition, DeviceBatch
from anyformer.training.settings import TrainSettings
from anyformer.training.trainer import Trainer, train
from tests.fast.test_host_sync import make_engine
from tests.training.test_every_task import CASES
from tests.training.test_trainer import Notes
from tests.training.toy import LENGTH, WORDS, DeadError, PictureToy, ReadingToy, Toy, fingerprint, settings

CUDA = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Even(Toy):
    """Rows of one length, so that nothing is padded; the last batch of an epoch is smaller."""

    def __init__(self, rows: int = 22, **more: Any) -> None:
        super().__init__(rows, **more)
        self.rows = [[(start * 5 + i) % WORDS for i in range(LENGTH)] for start in range(rows)]

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        logits, labels = self.model(input_ids=batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]
        total = F.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1), reduction="sum")
        return Loss(total, (labels != -100).sum(), {"again": total.detach()})

    def evaluate(self) -> dict[str, float | str]:
        batch = self.collate(range(len(self.rows)), torch.Generator())
        loss = self.loss({name: value.to(self.model.device) for name, value in batch.items()})
        return {"loss": float(loss.total / loss.count)}


class EvenPictures(PictureToy):
    """Batch norm follows every batch once."""

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        logits = self.model(pixel_values=batch["pixel_values"]).logits
        total = F.cross_entropy(logits, batch["labels"], reduction="sum")
        return Loss(total, torch.full((), len(logits), device=logits.device))

    def evaluate(self) -> dict[str, float | str]:
        batch = self.collate(range(len(self.labels)), torch.Generator())
        loss = self.loss({name: value.to(self.model.device) for name, value in batch.items()})
        return {"loss": float(loss.total / loss.count)}


class Peeks(Even):
    """Its loss depends on a value that the host reads."""

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        found = super().loss(batch)
        return Loss(found.total * (1.0 + float(batch["input_ids"][0, 0]) / WORDS), found.count)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[CapturedStep]:
    """Runs are recorded, GPU or not; the tapes of the steps that were replayed."""
    tapes: list[CapturedStep] = []
    plain = StepCapturer._replay
    monkeypatch.setattr(train_graph, "can_capture_steps", lambda *_: True)
    monkeypatch.setattr(StepCapturer, "_replay", lambda self, tape: tapes.append(tape) or plain(self, tape))
    return tapes


@pytest.mark.parametrize("kind", [Even, EvenPictures])
def test_a_recorded_run_is_the_run(
    kind: type[Toy], replayed: list[CapturedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, with a moving average, evaluations in between, and batches of two shapes."""
    recorded, plain, notes, usual = kind(), kind(), Notes(), Notes()
    train(recorded, settings(steps=40, ema_decay=0.9, weight_decay=0.1), callback=notes)
    assert len({id(tape) for tape in replayed}) == (2 if kind is Even else 1) and len(replayed) > 25
    monkeypatch.setattr(train_graph, "can_capture_steps", lambda *_: False)
    train(plain, settings(steps=40, ema_decay=0.9, weight_decay=0.1), callback=usual)
    assert notes.figures == usual.figures and notes.metrics == usual.metrics
    assert fingerprint(recorded.model) == fingerprint(plain.model)


def test_cut_off_and_continued_it_ends_the_same(tmp_path: Path, replayed: list[CapturedStep]) -> None:
    def die(progress: Progress) -> None:
        if progress.step == 13:
            raise DeadError

    whole, cut = Even(), Even()
    train(whole, settings(), folder=tmp_path / "whole")
    with pytest.raises(DeadError):
        train(Even(), settings(), folder=tmp_path / "cut", on_step=die)
    before = len(replayed)
    train(cut, settings(), folder=tmp_path / "cut", resume=True)
    assert fingerprint(whole.model) == fingerprint(cut.model) and len(replayed) > before


def test_rates_on_the_device_are_the_rates() -> None:
    """As float64 on a CPU: the weights are equal to the bit, layer by layer at rates of their own."""

    def trained(held: bool) -> str:
        toy = Toy()
        engine = Trainer(toy, settings(layer_decay=0.7, weight_decay=0.1), Devices(torch.device("cpu")))
        if held:
            engine.stepper.lr_to_device()
        engine.run()
        assert all(isinstance(group["lr"], Tensor) == held for group in engine.optimizer.param_groups)
        return fingerprint(toy.model)

    assert trained(True) == trained(False)


def fed(rows: int, **more: Any) -> DeviceBatch:
    return DeviceBatch(
        range(rows), {"x": torch.randn(rows, 3), "y": torch.arange(rows)}, True, 3 * rows, 4 * rows, **more
    )


def test_inputs_stay_where_they_are() -> None:
    """Batches are copied in, with their counts of tokens; the caller's own tensors are neither kept nor changed."""
    first, second = fed(2), fed(2)
    tape = CapturedStep(first, torch.device("cpu"))
    where = {name: value.data_ptr() for name, value in tape.inputs.batch.items()}
    for one in (first, second):
        tape.load(one)
        assert all(torch.equal(tape.inputs.batch[name], value) for name, value in one.batch.items())
        assert tape.inputs.read(torch.device("cpu")).tolist() == [6.0, 8.0]
    assert {name: value.data_ptr() for name, value in tape.inputs.batch.items()} == where
    assert graph_key(first) == graph_key(second) != graph_key(fed(3))
    turned = replace(first, batch={**first.batch, "x": torch.randn(3, 2).T})
    assert graph_key(turned) != graph_key(first), "kernels depend on how the numbers lie"


def test_texts_are_filled_up_to_few_shapes() -> None:
    """Multiples of rows and tokens, with what does not count; what stood there before is gone."""
    fills = {"x": -7, "y": 0}

    def some(rows: int, tokens: int) -> DeviceBatch:
        return DeviceBatch(range(rows), {"x": torch.ones(rows, tokens), "y": torch.ones(rows, 3).long()}, True, 1, 1)

    filling = PaddingPlan(fills, 64)
    assert graph_key(some(30, 9), filling) == graph_key(some(32, 16), filling) != graph_key(some(30, 17), filling)
    tape = CapturedStep(some(32, 16), torch.device("cpu"), filling)
    for rows, tokens in ((32, 16), (30, 9)):
        tape.load(some(rows, tokens))
        expected = torch.full((32, 16), -7.0)
        expected[:rows, :tokens] = 1
        assert torch.equal(tape.inputs.batch["x"], expected) and int(tape.inputs.batch["y"].sum()) == 3 * rows
    assert tape.inputs.batch["y"].shape == (32, 8)


def test_nothing_is_filled_up_beyond_what_a_model_can_read() -> None:
    """Tokens stop at the longest; images keep their shape, and then rows keep their number."""
    pair = {"x": torch.ones(30, 9), "pixels": torch.ones(30, 3, 4, 4)}
    assert PaddingPlan({"x": 0}, 12).sizes(pair) == {"x": (30, 12), "pixels": (30, 3, 4, 4)}
    assert PaddingPlan({"x": 0}, 64).sizes(pair)["x"] == (30, 16)
    assert PaddingPlan({"x": 0}).sizes(pair)["x"] == (30, 9)
    assert PaddingPlan({"x": 0}, 8).sizes(pair)["x"] == (30, 9), "a row that is there is never cut"
    assert PaddingPlan({"x": 0}, 64).sizes({"x": torch.ones(30, 9)}) == {"x": (32, 16)}
    assert PaddingPlan({"x": 0}, 64).sizes({"x": torch.ones(30, 4, 9)}) == {"x": (30, 4, 9)}


FILLED = [task for task in CASES if find(task).fills]


@pytest.mark.parametrize("task", FILLED)
def test_what_is_filled_up_leaves_loss_and_gradients_as_they_are(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task's own batches, filled up as they would be."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    engine = make_engine(task, tmp_path)
    engine.work.model.eval()  # no noise, which differs with the shape
    fed = engine.loader.next_batches(DataPosition(), 1)[0][0]
    longest = engine.work.longest
    tape = CapturedStep(fed, torch.device("cpu"), PaddingPlan(engine.work.fills, longest))
    tape.load(fed)
    grown = {name for name, value in fed.batch.items() if tape.inputs.batch[name].shape != value.shape}
    assert grown or longest is None, {name: value.shape for name, value in fed.batch.items()}
    found = []
    for batch in (fed.batch, tape.inputs.batch):
        engine.work.model.zero_grad()
        with no_host_sync():
            loss = engine.work.loss(batch)
        (loss.total / loss.count).backward()
        grads = [p.grad.clone() for p in engine.work.model.parameters() if p.grad is not None]
        found.append((loss.total.detach(), loss.count, grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", FILLED)
def test_tasks_learn_the_same_from_filled_up_batches(
    task: str, tmp_path: Path, replayed: list[CapturedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task says what may be appended: without noise the losses are those of the rows as they were, up to rounding,
    which grows from step to step."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(F, "dropout", lambda x, *_, **__: x)
    losses = []
    for number, recorded in enumerate((True, False)):
        monkeypatch.setattr(train_graph, "can_capture_steps", lambda *_, recorded=recorded: recorded)
        (tmp_path / str(number)).mkdir()
        engine = make_engine(task, tmp_path / str(number), steps=14)
        engine.callback = notes = Notes()
        engine.run()
        losses.append(notes.losses)
    assert len(replayed) > 3
    assert losses[0] == pytest.approx(losses[1], rel=5e-3) and losses[0][0] != losses[0][-1]


def recorder_and_words(whole: Any = lambda one: (torch.zeros(5), {})) -> tuple[StepCapturer, list[str]]:
    """And what it says."""
    said: list[str] = []
    return StepCapturer(whole, torch.device("cpu"), say=said.append), said


def test_so_many_shapes_and_no_more() -> None:
    recorder, said = recorder_and_words()
    for rows in range(1, KEPT + 4):
        for n in range(WARM + 2):
            assert (recorder.step(fed(rows)) is None) == (rows > KEPT), (rows, n)
    recorder.end()
    assert len(recorder.captured) == KEPT
    assert said == [f"Some steps are not captured as CUDA graphs: batches come in more than {KEPT} shapes."]


def test_each_reason_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever shape it is that is not recorded, also where others are."""

    def whole(one: DeviceBatch) -> Any:
        if len(one.batch["x"]) > 2:
            float(one.batch["x"].sum())
        return torch.zeros(5), {}

    recorder, said = recorder_and_words(whole)
    for rows in (2, 3, 4):
        for _ in range(WARM + 1):
            recorder.step(fed(rows))
    assert said == ["Some steps are not captured as CUDA graphs: they synchronize with the host (_local_scalar_dense)."]
    assert [tape is None for tape in recorder.captured.values()] == [False, True, True]
    monkeypatch.setattr(StepCapturer, "_crowds", lambda self: "they crowd the GPU")
    for _ in range(2 * WARM):
        recorder.step(fed(1))
    recorder.end()
    assert said[1:] == ["Some steps are not captured as CUDA graphs: they crowd the GPU."]


@pytest.mark.parametrize(("times", "says"), [(0, False), (WARM, True), (WARM + 1, False)])
def test_shapes_that_do_not_come_again(times: int, says: bool) -> None:
    recorder, said = recorder_and_words()
    for _ in range(times):
        recorder.step(fed(2))
    recorder.end()
    assert said == (
        ["No step was captured as a CUDA graph: no batch shape occurred more than 3 times."] if says else []
    )


def test_a_run_of_few_steps_says_that_it_was_not_recorded(replayed: list[CapturedStep]) -> None:
    notes = Notes()
    train(Even(), settings(steps=WARM), callback=notes)
    assert not replayed and notes.said == [
        "No step was captured as a CUDA graph: no batch shape occurred more than 3 times."
    ]


def test_a_step_that_looks_at_values_is_not_recorded(
    replayed: list[CapturedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, plain, notes = Peeks(), Peeks(), Notes()
    train(recorded, settings(), callback=notes)
    assert not replayed and ["synchronize with the host (_local_scalar_dense)" in said for said in notes.said] == [True]
    monkeypatch.setattr(train_graph, "can_capture_steps", lambda *_: False)
    train(plain, settings())
    assert fingerprint(recorded.model) == fingerprint(plain.model)


def test_what_is_recorded() -> None:
    """By itself where a task is steady and nothing stands against it; where that was asked for, an error says what."""
    toy, gpu = Even(), Devices(CUDA)
    usual = TrainSettings(precision="bf16")
    assert can_capture_steps(toy, usual, gpu) and can_capture_steps(toy, usual.replace(cuda_graphs=True), gpu)
    assert not can_capture_steps(toy, usual.replace(cuda_graphs=False), gpu)
    assert not can_capture_steps(toy, usual.replace(compile=True), gpu)
    assert can_capture_steps(toy, usual.replace(compile=True, cuda_graphs=True), gpu)
    toy.steady = False
    assert not can_capture_steps(toy, usual, gpu) and can_capture_steps(toy, usual.replace(cuda_graphs=True), gpu)
    toy.fills = {"input_ids": 0}  # texts that can be filled up are recorded too, where the model is small
    assert can_capture_steps(toy, usual, gpu) and not can_capture_steps(toy, usual.replace(compile=True), gpu)
    toy.model = af.build("gpt2-tiny", d_model=512, n_layers=16, vocab_size=1000).eval()
    assert sum(p.numel() for p in toy.model.parameters()) > SMALL
    assert not can_capture_steps(toy, usual, gpu) and can_capture_steps(toy, usual.replace(cuda_graphs=True), gpu)


def test_a_run_says_why_its_steps_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where nobody forbade it: what stands against it, or that it must be asked for."""
    toy, gpu, usual = Even(), Devices(CUDA), TrainSettings(precision="bf16")
    assert why_not_captured(toy, usual, gpu) is None
    assert "are compiled (train.compile); train.cuda_graphs=true does both." in str(
        why_not_captured(toy, usual.replace(compile=True), gpu)
    )
    assert "with train.gradient_accumulation." in str(
        why_not_captured(toy, usual.replace(gradient_accumulation=2), gpu)
    )
    for changes in (
        {"cuda_graphs": True},
        {"cuda_graphs": False, "compile": True},
        {"cuda_graphs": True, "compile": True},
    ):
        assert why_not_captured(toy, usual.replace(**changes), gpu) is None
    assert why_not_captured(toy, usual.replace(compile=True), Devices(torch.device("cpu"))) is None
    toy.steady = False
    assert "batches differ in shape" in str(why_not_captured(toy, usual, gpu))

    notes = Notes()
    monkeypatch.setattr(train_graph, "why_not_captured", lambda *_: "Steps are not captured as CUDA graphs for once.")
    train(Even(), settings(steps=1), callback=notes)
    assert notes.said == ["Steps are not captured as CUDA graphs for once."]


@pytest.mark.parametrize("record", [False, "auto", True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("steady", [False, True])
def test_either_it_is_recorded_or_it_says_why(record: Any, compiled: bool, steady: bool) -> None:
    toy, chosen = Even(), TrainSettings(precision="bf16", cuda_graphs=record, compile=compiled)
    toy.steady = steady
    silent = why_not_captured(toy, chosen, Devices(CUDA)) is None
    assert silent == (record is False or can_capture_steps(toy, chosen, Devices(CUDA)))


@pytest.mark.parametrize(
    ("changes", "devices", "said"),
    [
        ({}, Devices(torch.device("cpu")), "without a GPU"),
        ({}, Devices(CUDA, 0, 2), "multiple devices"),
        ({"gradient_accumulation": 2}, Devices(CUDA), "gradient_accumulation"),
        ({"precision": "fp16"}, Devices(CUDA), "fp16"),
        ({"gradient_checkpointing": True}, Devices(CUDA), "gradient_checkpointing"),
    ],
)
def test_what_stands_against_it(changes: dict[str, Any], devices: Devices, said: str) -> None:
    chosen = TrainSettings(precision="bf16").replace(**changes)
    assert not can_capture_steps(Even(), chosen, devices)
    with pytest.raises(af.ConfigError, match=said):
        can_capture_steps(Even(), chosen.replace(cuda_graphs=True), devices)


def test_layers_that_are_left_out_by_chance_are_not_recorded() -> None:
    toy = Even()
    toy.model = af.build("bart-tiny", layer_drop=0.1).eval()
    assert "layer_drop" in str(capture_obstacle(toy, TrainSettings(precision="bf16"), Devices(CUDA)))


# On a GPU.


def both(kind: type[Toy], **changes: Any) -> tuple[Notes, Notes, Toy, Toy]:
    """The same run recorded and as usual."""
    chosen = settings(steps=40, device="cuda", weight_decay=0.1, ema_decay=0.9, **changes)
    recorded, plain, notes, usual = kind(), kind(), Notes(), Notes()
    train(recorded, chosen.replace(cuda_graphs=True), callback=notes)
    train(plain, chosen.replace(cuda_graphs=False), callback=usual)
    return notes, usual, recorded, plain


def same(notes: Notes, usual: Notes) -> None:
    """The noise of dropout is the same, or losses would be apart by a tenth; sums of gradients may be in any order."""
    assert notes.losses == pytest.approx(usual.losses, rel=2e-3)
    assert [(one.tokens, one.slots, one.lr) for one in notes.figures] == [
        (one.tokens, one.slots, one.lr) for one in usual.figures
    ]


@needs_gpu
@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "float32"},
        {"precision": "bf16"},
        {"optimizer": "muon", "lr": 1e-3, "precision": "float32"},
        {"optimizer": "muon", "lr": 1e-3, "precision": "bf16"},
    ],
)
@pytest.mark.parametrize("kind", [Even, EvenPictures])
def test_on_a_gpu_a_recorded_run_is_the_run(
    kind: type[Toy], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    replays: list[int] = []
    plain = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: replays.append(1) or plain(self))
    notes, usual, one, other = both(kind, **changes)
    assert len(replays) > 25 and "Steps are captured as CUDA graphs from now on." in notes.said
    same(notes, usual)
    if changes["precision"] == "bf16" and "optimizer" in changes:
        return  # turning a gradient makes its noise as large as what it says
    started = kind().model.state_dict()
    for name, a in one.model.state_dict().items():
        b = other.model.state_dict()[name]
        moved = (b.float() - started[name].to(b.device).float()).norm()
        assert (a.float() - b.float()).norm() <= 0.05 * moved + 1e-6, name  # which noise in gradients can do


@needs_gpu
def test_on_a_gpu_it_goes_on_after_a_break(tmp_path: Path) -> None:
    def die(progress: Progress) -> None:
        if progress.step == 13:
            raise DeadError

    whole, rest = Notes(), Notes()
    chosen = settings(device="cuda", cuda_graphs=True)
    train(Even(), chosen, folder=tmp_path / "whole", callback=whole)
    with pytest.raises(DeadError):
        train(Even(), chosen, folder=tmp_path / "cut", on_step=die)
    train(Even(), chosen, folder=tmp_path / "cut", resume=True, callback=rest)
    assert rest.losses == pytest.approx(whole.losses[10:], rel=2e-3)


class Breaks(Even):
    """Does while it is recorded what cannot be, and did not when it was watched."""

    way = "raise"

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        found = super().loss(batch)
        if torch.cuda.is_current_stream_capturing():
            if self.way == "raise":
                raise ValueError("not while recording")
            float(found.total.detach())
        return found


@needs_gpu
@pytest.mark.parametrize("way", ["raise", "wait"])
def test_on_a_gpu_a_recording_that_fails_changes_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on, at the same noise, and the generator draws; later runs are recorded again."""
    monkeypatch.setattr(Breaks, "way", way)
    notes, usual, *_ = both(Breaks)
    assert [said for said in notes.said if said.startswith("Steps are not captured as CUDA graphs")]
    same(notes, usual)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.manual_seed(3)
    first = torch.rand(4, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="cuda"))
    assert "Steps are captured as CUDA graphs from now on." in both(Even)[0].said


@needs_gpu
def test_on_a_gpu_a_step_that_waits_is_seen_before() -> None:
    notes, usual, *_ = both(Peeks)
    assert any("synchronize with the host" in said for said in notes.said)
    same(notes, usual)


@needs_gpu
@pytest.mark.slow
def test_on_a_gpu_a_compiled_step_is_recorded_too() -> None:
    chosen = settings(steps=20, device="cuda", compile=True)
    notes, usual = Notes(), Notes()
    train(Even(dropout=0.0), chosen.replace(cuda_graphs=True), callback=notes)
    train(Even(dropout=0.0), chosen.replace(cuda_graphs=False), callback=usual)
    assert "Steps are captured as CUDA graphs from now on." in notes.said, notes.said
    same(notes, usual)


STEADY = ("classify-image", "classify-audio", "classify-video", "complete-image", "reconstruct", "pose", "segment")


@needs_gpu
@pytest.mark.parametrize("task", [*STEADY, "generate", "fill-mask", *FILLED])
def test_on_a_gpu_every_steady_task_is_recorded(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, with the losses of the run that is not; texts that are filled up without noise, which differs then.
    Those that would be compiled on a GPU (complete-image) are not here."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    if task in FILLED:
        monkeypatch.setattr(F, "dropout", lambda x, *_, **__: x)
    losses = []
    for record in ("auto", False):
        folder = tmp_path / str(record)
        folder.mkdir()
        chosen = {"steps": 14, "cuda_graphs": record, "precision": "bf16", "compile": False}
        engine = make_engine(task, folder, torch.device("cuda", 0), **chosen)
        engine.callback = notes = Notes()
        engine.recorder = engine._make_recorder()  # which speaks to the watcher
        engine.run()
        losses.append(notes.losses)
        assert ("Steps are captured as CUDA graphs from now on." in notes.said) == (record is not False)
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("record", ["auto", True])
def test_on_a_gpu_pictures_are_completed_by_compiled_steps(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the task advises; a run says that its steps are not recorded, or, where that is asked for, records them."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    chosen = {"steps": 14, "cuda_graphs": record, "precision": "bf16"}
    engine = make_engine("complete-image", tmp_path, torch.device("cuda", 0), **chosen)
    assert engine.settings.compile
    engine.callback = notes = Notes()
    engine.recorder = engine._make_recorder()
    engine.run()
    expected = "Steps are captured as CUDA graphs from now on." if record is True else "if they are compiled"
    assert any(expected in said for said in notes.said), notes.said


@needs_gpu
def test_on_a_gpu_memory_goes_on_in_recorded_steps() -> None:
    notes, usual, *_ = both(ReadingToy)
    assert "Steps are captured as CUDA graphs from now on." in notes.said
    same(notes, usual)
