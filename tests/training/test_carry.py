"""Memory that goes on from batch to batch: what it computes, against the text read from its beginning; and that nothing
of it is lost when a run is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import anyformer as af
from anyformer.core.host import no_host_sync
from anyformer.data.batch_sampler import BatchConfig
from anyformer.fast import train_graph
from anyformer.fast.host_sync import detect_host_syncs
from anyformer.fast.train_graph import StepCapturer
from anyformer.tasks.segment_memory import CONTINUES, MemoryStreams, SegmentMemory
from anyformer.training import trainer as engines
from anyformer.training.trainer import Trainer, train
from tests.batches import build
from tests.training.test_every_task import TEXT
from tests.training.test_trainer import Notes
from tests.training.toy import DeadError, ReadingToy, fingerprint, settings

XL = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_head": 8, "d_hidden": 16, "vocab_size": 30, "dropout": 0.0}


def test_each_row_goes_on_where_it_ended() -> None:
    """In every epoch each stream is read from its beginning to its end, without a gap; no two streams meet."""
    plan = MemoryStreams(1003, 7, BatchConfig(rows=4), seed=1)
    begins = set()
    for epoch in range(4):
        batches = np.stack(plan.global_batches(epoch))
        assert (np.diff(batches, axis=0) == 7).all() and batches.shape[1] == 4
        read = (batches[..., None] + np.arange(7)).flatten()
        assert len(set(read)) == len(read) and read.max() < 1003
        assert len(read) > 1003 - 5 * 7
        begins.add(int(batches[0, 0]))
    assert plan.global_batches(0)[0][0] == 0 and len(begins) > 1 and max(begins) < 7


def test_fewer_streams_where_there_is_little_text() -> None:
    assert MemoryStreams(20, 7, BatchConfig(rows=4), 0).rows == 2
    assert all(len(MemoryStreams(20, 7, BatchConfig(rows=4), 0).global_batches(n)) == 1 for n in range(5))
    with pytest.raises(af.Error, match=r"data\.max_length"):
        MemoryStreams(6, 7, BatchConfig(rows=4), 0)


def read_on(model: af.Model, texts: Tensor, window: int) -> list[Tensor]:
    """The scores of every window, by a memory that is carried along."""
    carried, made = SegmentMemory(model, len(texts)), []
    for number, ids in enumerate(texts.split(window, dim=1)):
        out = model(input_ids=ids, past_key_values=carried.open(torch.full((len(ids),), number > 0)))
        carried.close(out.past_key_values)
        made.append(out.logits)
    return made


@pytest.mark.parametrize("mem_len", [3, 5, 12])
@pytest.mark.parametrize("order", ["pre", "post"])
def test_it_is_the_text_read_segment_by_segment(mem_len: int, order: str) -> None:
    """As `past_key_values` grow, which test_transformer_xl holds against a brute computation; gradients too."""
    model = build("transformer-xl-tiny", **XL, mem_len=mem_len, norm_order=order)
    texts = torch.randint(0, 30, (3, 20))
    state: dict[str, Any] = {"use_cache": True}
    for number, ours in enumerate(read_on(model, texts, 4)):
        ids = texts[:, 4 * number : 4 * number + 4]
        out = model(input_ids=ids, **state)
        state = {"past_key_values": out.past_key_values}
        torch.testing.assert_close(ours, out.logits, rtol=0, atol=1e-12)
        grads = [
            torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), ids.flatten()), list(model.parameters()))
            for logits in (ours, out.logits)
        ]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_at_one_layer_it_is_the_text_read_again() -> None:
    """What one layer remembers is the words themselves, so that reading them again gives the same, gradients apart."""
    model = build("transformer-xl-tiny", **{**XL, "n_layers": 1}, mem_len=6)
    texts = torch.randint(0, 30, (3, 20))
    with torch.no_grad():
        made = read_on(model, texts, 4)
        for number, ours in enumerate(made):
            start = 4 * number
            again = model(input_ids=texts[:, max(start - 6, 0) : start + 4]).logits[:, -4:]
            torch.testing.assert_close(ours, again, rtol=0, atol=1e-12)


def test_a_row_that_begins_anew_sees_nothing_before_it() -> None:
    model = build("transformer-xl-tiny", **XL, mem_len=6)
    texts = torch.randint(0, 30, (2, 8))
    carried = SegmentMemory(model, 2)
    with torch.no_grad():
        carried.close(
            model(input_ids=texts, past_key_values=carried.open(torch.zeros(2, dtype=torch.bool))).past_key_values
        )
        out = model(input_ids=texts, past_key_values=carried.open(torch.tensor([False, True])))
        alone = model(input_ids=texts).logits
    torch.testing.assert_close(out.logits[0], alone[0], rtol=0, atol=1e-12)
    assert not torch.allclose(out.logits[1], alone[1])


def test_memory_learns_what_a_window_does_not_hold() -> None:
    """Windows of four tokens of a text that repeats every six: without memory half of it cannot be known."""
    notes = Notes()
    train(ReadingToy(dropout=0.0), settings(steps=150), callback=notes)
    assert notes.losses[-1] < 0.1


def test_nothing_in_a_step_with_memory_looks_at_values() -> None:
    toy = ReadingToy()
    engine = Trainer(toy, settings(), engines.Devices(torch.device("cpu")))
    fed = engine.loader.next_batches(engine.state.position, 1)[0][0]
    with detect_host_syncs(torch.device("cpu")) as found, no_host_sync():
        engine._whole(fed)
    assert not found


@pytest.mark.parametrize("recorded", [False, True])
def test_cut_off_and_continued_it_ends_the_same(
    recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step of an epoch and a half, to the bit; evaluations in between leave the memory alone."""
    replays: list[int] = []
    plain = StepCapturer._replay
    monkeypatch.setattr(train_graph, "can_capture_steps", lambda *_: recorded)
    monkeypatch.setattr(StepCapturer, "_replay", lambda self, tape: replays.append(1) or plain(self, tape))
    whole, never = ReadingToy(), ReadingToy()
    train(whole, settings(eval_every=1, average_checkpoints=1), folder=tmp_path / "whole")
    train(never, settings(eval_every=0, save_every=0))
    assert fingerprint(whole.model) == fingerprint(never.model)
    for cut in (4, 9, 12, 17):

        def die(progress: Any, cut: int = cut) -> None:
            if progress.step == cut:
                raise DeadError

        toy, folder = ReadingToy(), tmp_path / str(cut)
        with pytest.raises(DeadError):
            train(ReadingToy(), settings(save_every=4, average_checkpoints=1), folder=folder, on_step=die)
        train(toy, settings(save_every=4, average_checkpoints=1), folder=folder, resume=True)
        assert fingerprint(toy.model) == fingerprint(whole.model)
    assert bool(replays) == recorded


ORDER: dict[str, Any] = {
    **{"recipe": "transformer-xl-tiny", "tokenizer.kind": "char", "data.max_length": 16, "mem_len": 24},
    **{"steps": 20, "save_every": 6, "eval_every": 6, "log_every": 1, "batch_size": 4, "device": "cpu"},
}


def test_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained, cut off, continued to the same bits; evaluated as the folder is when it is loaded."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "x.txt").write_text(TEXT)
    order = {**ORDER, "data": tmp_path / "x.txt", "task.carry_memory": True}
    step = Trainer.step

    def die(engine: Trainer) -> None:
        step(engine)
        if engine.state.step == 15:
            raise DeadError

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", die)
        with pytest.raises(DeadError):
            af.train("generate", out=tmp_path / "cut", **order)
    af.train("generate", out=tmp_path / "cut", resume=True, **order)
    done = af.train("generate", out=tmp_path / "whole", **order)
    cut, whole = (load_file(tmp_path / folder / "model.safetensors") for folder in ("cut", "whole"))
    assert all(torch.equal(cut[key], whole[key]) for key in whole)
    task = af.task("generate", tmp_path / "whole", max_new_tokens=4)
    rows = type(task).read(tmp_path / "x.txt")
    found = task.evaluate(rows[-len(rows) // 20 :])
    assert 0 < found["loss"] < 5 and done.state.best is not None
    assert str(task("the cat"))


def test_a_model_that_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "x.txt").write_text(TEXT)
    order = {**ORDER, "data": tmp_path / "x.txt", "task.carry_memory": True}
    other = {key: value for key, value in order.items() if key != "mem_len"} | {"recipe": "gpt2-tiny"}
    for wrong in (other, {**order, "mem_len": 0}):
        with pytest.raises(af.ConfigError, match="transformer-xl"):
            af.train("generate", out=tmp_path / "out", **wrong)
        assert not (tmp_path / "out").exists()
    with pytest.raises(af.ConfigError, match=r"memory .*carry_memory"):
        af.train("generate", out=tmp_path / "out", **order, **{"task.memory": 8})


def test_activation_checkpointing_leaves_memory_alone() -> None:
    """A block is not computed again where it has a memory, which has moved on by then."""
    once, again = ReadingToy(), ReadingToy()
    train(once, settings())
    train(again, settings(gradient_checkpointing=True))
    assert fingerprint(once.model) == fingerprint(again.model)


def test_batches_say_whether_they_go_on() -> None:
    engine = Trainer(ReadingToy(), settings(), engines.Devices(torch.device("cpu")))
    place, epochs = engine.state.position, set()
    for _ in range(25):
        (fed,), after = engine.loader.next_batches(place, 1)
        assert fed.batch[CONTINUES].tolist() == [place.batch > 0] * 5
        epochs.add(place.epoch)
        place = after
    assert epochs == {0, 1, 2}
