"""From a user's file to a folder that runs: the command, from Python and from the shell."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import anyformer as af
from anyformer.cli.main import main
from anyformer.training.report import MetricsFile
from anyformer.training.run_folder import RECORD
from anyformer.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
GOOD, BAD = "good fine great nice lovely".split(), "bad awful poor sad ugly".split()
SMALL = {"n_layers": 1, "steps": 12, "eval_every": 5, "save_every": 5, "log_every": 1, "device": "cpu"}
QUICK = [f"--set={key}={value}" for key, value in SMALL.items()]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = ["text\tlabel"]
    for i in range(60):
        words = GOOD if i % 2 else BAD
        lines.append(f"it is {words[i % 5]} and {words[(i + 1) % 5]}\t{'yes' if i % 2 else 'no'}")
    path = tmp_path / "reviews.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_table_becomes_a_folder_that_runs(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / "mine", **{**SMALL, "steps": 60})
    out = tmp_path / "mine"
    assert done.folder == out and done.state.step == 60
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "report.html", RECORD}
    config = json.loads((out / "config.json").read_text())
    assert f"<td>model.vocab_size</td><td>{config['model']['vocab_size']}</td>" in (out / "report.html").read_text()
    assert config["train"]["steps"] == 60 and config["model"]["n_layers"] == 1 and "vocab_size" in config["tokenizer"]
    record = json.loads((out / RECORD).read_text())
    assert record["command"] and record["versions"]["torch"] and record["settings"]["train.steps"] == 60
    ask = af.task("classify-text", out)
    assert str(ask("it is lovely and nice")) != str(ask("it is awful and sad"))
    shown = capsys.readouterr().out
    for words in ("tokens/s", "padding", "kWh", "1,984 lb", "anyformer run classify-text --model"):
        assert words in shown


def test_a_run_that_was_cut_off_goes_on(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tokenizer that it had, to the same weights; another start is refused, other settings too."""

    def order(out: str, **changes: Any) -> None:
        options = {**SMALL, "tokenizer.kind": "word", **changes}
        af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / out, **options)

    class DeadError(Exception):
        pass

    step = Trainer.step

    def die(engine: Trainer) -> None:
        step(engine)
        if engine.state.step == 8:
            raise DeadError

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", die)
        with pytest.raises(DeadError):
            order("cut")
    with pytest.raises(af.FolderError, match=r"cut .*--resume"):
        order("cut")
    with pytest.raises(af.ConfigError, match=r"train\.lr=.* 0\.5"):
        order("cut", lr=0.5, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr(af.Tokenizer, "train", None)  # it is not learned again
        order("cut", resume=True)
    order("whole")
    cut, whole = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert cut.keys() == whole.keys() and all(torch.equal(cut[name], whole[name]) for name in whole)
    table.write_text(table.read_text() + "it is new\tyes\n")
    with pytest.raises(af.ConfigError, match=r"data .*cut"):
        order("cut", resume=True)


def test_a_finished_run_is_made_longer(table: Path, tmp_path: Path) -> None:
    """By saying how many steps; what was set then need not be said again, and what follows from the steps stays."""
    order = {"recipe": "bert-tiny", "data": table, "out": tmp_path / "mine"}
    af.train("classify-text", **order, **SMALL, **{"train.lr": 1e-3})
    warmup = json.loads((tmp_path / "mine" / RECORD).read_text())["settings"]["train.warmup_steps"]
    done = af.train("classify-text", **order, n_layers=1, steps=400, resume=True, device="cpu", eval_every=100)
    settings = json.loads((tmp_path / "mine" / "config.json").read_text())["train"]
    assert done.state.step == 400 and (settings["lr"], settings["warmup_steps"], settings["steps"]) == (
        1e-3,
        warmup,
        400,
    )


@pytest.mark.parametrize(
    "wrong",
    [{"train.freeze": ["enc.*"]}, {"lora": 2, "train.lora_targets": ["zzz"]}, {"train.divergence_factor": 1e-9}],
)
def test_a_run_that_saved_nothing_leaves_nothing(wrong: dict[str, Any], table: Path, tmp_path: Path) -> None:
    """So that the mistake can be mended and the command typed again."""
    out = tmp_path / "mine"
    with pytest.raises(af.Error):
        af.train("classify-text", recipe="bert-tiny", data=table, out=out, **{**SMALL, **wrong})
    assert not out.exists()
    af.train("classify-text", recipe="bert-tiny", data=table, out=out, **SMALL)


def test_a_run_that_saved_its_best_weights_keeps_them(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that saved nothing goes, but for what is not its own."""
    step = Trainer.step

    def fail(engine: Trainer) -> None:
        step(engine)
        if engine.state.step == engine.settings.steps:
            raise af.InputError("no more")

    monkeypatch.setattr(Trainer, "step", fail)
    for name, every in (("best", 2), ("nothing", 0)):
        order = {**SMALL, "eval_every": every, "save_every": 0}
        with pytest.raises(af.InputError, match="no more"):
            af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / name, **order)
    assert list((tmp_path / "best" / "checkpoints").glob("best-*")) and (tmp_path / "best" / "metrics.jsonl").exists()
    assert not (tmp_path / "nothing").exists()


def test_a_disk_that_is_full(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MetricsFile, "on_evaluate", full)
    with pytest.raises(af.FolderError, match=r"mine cannot be written \(No space left on device\)"):
        af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / "mine", **SMALL)


@pytest.mark.parametrize(
    ("task", "recipe", "more"),
    [
        ("generate", "gpt2-tiny", {}),
        ("generate", "transformer-xl-tiny", {"task.carry_memory": True}),
        ("fill-mask", "bert-tiny", {}),
        ("electra", "electra-joint-tiny", {}),
    ],
)
def test_a_text_to_evaluate_on_that_is_shorter_than_a_window(
    task: str, recipe: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """The end of a short text, held back."""
    text = tmp_path / "poem.txt"
    text.write_text("".join(f"The red fox number {i} jumps over the lazy dog.\n" for i in range(60)))
    order = {"steps": 2, "batch_size": 2, "data.max_length": 64, "tokenizer.vocab_size": 300, "device": "cpu", **more}
    done = af.train(task, recipe=recipe, data=text, out=tmp_path / "mine", **order)
    assert 0 < done.metrics["loss"] < float("inf")


def test_documents_to_evaluate_on_that_are_too_few(tmp_path: Path) -> None:
    """Said before the training, and of which rows."""
    text = tmp_path / "x.txt"
    text.write_text("".join(f"one line of {i}\nand another of {i}\n\n" for i in range(10)))
    order = {"steps": 2, "tokenizer.vocab_size": 300, "task.next_sentence": True, "device": "cpu"}
    order["data.validation_split"] = 0.1
    with pytest.raises(af.DataError, match=r"\b3 rows .*x\.txt\): task\.next_sentence"):
        af.train("fill-mask", recipe="bert-tiny", data=text, out=tmp_path / "mine", **order)
    assert not (tmp_path / "mine").exists()


def test_a_label_that_is_held_back_is_known(tmp_path: Path) -> None:
    """The only row of a label may be one that nobody learns from."""
    rows = [f"it is number {i} of many\t{'ab'[i % 2]}" for i in range(40)]
    rare = int(np.random.default_rng(0).permutation(40)[0])
    rows[rare] = "it is rare\tc"
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    done = af.train("classify-text", recipe="bert-tiny", data=tmp_path / "x.tsv", out=tmp_path / "mine", **SMALL)
    assert af.task("classify-text", done.folder).labels == ("a", "b", "c")


def test_a_folder_is_given_other_words(table: Path, tmp_path: Path) -> None:
    """Those that both tokenizers know keep their vectors, wherever they stand; settings without effect are refused."""
    small = {name: value for name, value in SMALL.items() if name != "n_layers"}
    words = {"tokenizer.kind": "word", "tokenizer.vocab_size": 20}
    af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / "first", **{**small, **words})
    extra = af.Tokenizer.train(
        iter(["zebra it was lovely is", "zebra nice awful"]), kind="word", vocab_size=12, bert=True
    )
    extra.save(tmp_path / "words")
    order = {**small, "steps": 1, "lr": 1e-30, "tokenizer.path": str(tmp_path / "words")}
    af.train("classify-text", recipe=tmp_path / "first", data=table, out=tmp_path / "second", **order)
    before, after = (af.task("classify-text", tmp_path / name) for name in ("first", "second"))
    old, new = (one.model.state_dict()["encoder.inputs.words.weight"] for one in (before, after))
    known, has = before.tokenizer.engine.get_vocab(), after.tokenizer.engine.get_vocab()
    both = sorted(known.keys() & has.keys() - {"zebra"})
    assert "lovely" in both and len(new) == len(has) != len(old)
    torch.testing.assert_close(new[[has[word] for word in both]], old[[known[word] for word in both]])
    torch.testing.assert_close(new[has["zebra"]], old.mean(dim=0))
    with pytest.raises(af.ConfigError, match=r"tokenizer\.kind"):
        af.train("classify-text", recipe=tmp_path / "first", data=table, out=tmp_path / "third", **small, **words)


def test_a_run_without_evaluation_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two.tsv").write_text("text\tlabel\nit is good\tyes\nit is bad\tno\n")
    af.train("classify-text", recipe="bert-tiny", data=tmp_path / "two.tsv", out=tmp_path / "mine", **SMALL)
    assert "2 for training, none for validation" in capsys.readouterr().out


def test_stopping_early_is_said(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = {**SMALL, "steps": 60, "eval_every": 1, "train.patience": 2, "lr": 1e-30}
    done = af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / "mine", **order)
    assert done.state.step == 3
    assert "step 3: 2 evaluations" in capsys.readouterr().out


def test_a_folder_is_taken_further(table: Path, tmp_path: Path) -> None:
    af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / "first", **SMALL)
    more = {name: value for name, value in SMALL.items() if name != "n_layers"}
    done = af.train("classify-text", recipe=tmp_path / "first", data=table, out=tmp_path / "second", **more)
    assert done.state.step == 12
    assert (tmp_path / "second" / "tokenizer.json").read_text() == (tmp_path / "first" / "tokenizer.json").read_text()


def test_a_folder_is_taken_further_under_other_dropouts(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are in force, in its folder, among its settings, and held to when it goes on; what wants other weights is
    refused, by a sentence."""
    af.train("classify-text", recipe="bert-tiny", data=table, out=tmp_path / "first", **SMALL)
    more = {name: value for name, value in SMALL.items() if name != "n_layers"}

    def go(out: str, **changes: Any) -> Any:
        options = {**more, **changes}
        return af.train("classify-text", recipe=tmp_path / "first", data=table, out=tmp_path / out, **options)

    was = json.loads((tmp_path / "first" / "config.json").read_text())["model"]
    losses = []
    for out, changes in (("as-it-is", {}), ("second", {"model.dropout": 0.4, "attention_dropout": "0.3"})):
        go(out, **changes)
        losses.append([row["loss"] for row in map(json.loads, (tmp_path / out / "metrics.jsonl").open())])
    now = json.loads((tmp_path / "second" / "config.json").read_text())["model"]
    assert now == {**was, "dropout": 0.4, "attention_dropout": 0.3} and losses[0] != losses[1]
    assert json.loads((tmp_path / "second" / RECORD).read_text())["settings"]["model.dropout"] == 0.4
    with pytest.raises(af.ConfigError, match=r"model\.dropout=0\.4, .* 0\.5"):
        go("second", resume=True, **{"model.dropout": 0.5, "attention_dropout": 0.3})

    capsys.readouterr()
    order = ("train", "classify-text", "--recipe", "first", "--data", table, "--out", "third")
    assert run(*order, "--set", "model.dropout=0.2", "--dry-run") == 0
    assert {"model.dropout: 0.2", "model.n_layers: 1"} <= set(capsys.readouterr().out.splitlines())
    for setting, says in (
        ("model.n_layers=2", "model.n_layers cannot"),
        ("model.droput=0.2", "Did you mean"),
    ):
        assert run(*order, "--set", setting) == 2
        shown = capsys.readouterr().err
        assert says in shown and shown.count("\n") == 1 and not Path("third").exists()


@pytest.mark.parametrize(("recipe", "warmup"), [("bert-tiny", None), ("bahdanau-small", 3), ("transformer-tiny", 20)])
def test_pace_follows_the_steps_however_they_are_given(
    recipe: str, warmup: int | None, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By --set, by a file's section, against a recipe that has a pace of its own (200 steps of 6,000), and where the
    task names no number of steps (2,000 of the usual 10,000)."""
    (table.parent / "mine.yaml").write_text("train:\n  steps: 100\n")
    task = "classify-text" if warmup is None else "translate"
    names = [] if warmup is None else ["--set", "data.columns=source=text,target=label"]
    shown = []
    for given in (["--set", "train.steps=100"], ["--set", "steps=100"], ["--config", table.parent / "mine.yaml"]):
        assert run("train", task, "--recipe", recipe, "--data", table, "--out", "x", *names, *given, "--dry-run") == 0
        shown.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("train.")])
    assert shown[0] == shown[1] == shown[2] and "train.steps: 100" in shown[0]
    found = next(int(line.split()[1]) for line in shown[0] if line.startswith("train.warmup_steps:"))
    assert found == warmup if warmup is not None else 0 < found <= 20


def test_every_setting_is_printed(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (table.parent / "mine.yaml").write_text("train:\n  lr: 1e-3\n  warmup_steps: 7\n")
    arguments = ("--recipe", "bert-tiny", "--data", table, "--out", "mine", "--config", table.parent / "mine.yaml")
    assert run("train", "classify-text", *arguments, "--set", "train.warmup_steps=9", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"train.lr: 0.001", "train.warmup_steps: 9", "tokenizer.vocab_size: 8000"} <= set(lines)
    assert {line.split(".")[0] for line in lines} >= {"model", "train", "data", "tokenizer"}
    assert any("48 for training, 12 for validation (held out, drawn at random" in line for line in lines)
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--set", "train.step=5"], 'Did you mean "train.steps"?'),
        (["--set", "train.steps=many"], "train.steps is 'many'"),
        (["--set", "train.steps"], "--set KEY=VALUE"),
        (["--recipe", "bert-tinny"], 'Did you mean "bert-tiny"?'),
        (["--recipe", "vit-tiny"], "vit-tiny"),
        (["--data", "nowhere.tsv"], "nowhere.tsv"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--out", "reviews.tsv"], "reviews.tsv is a file"),
        (["--set", "train.device=cuda:99"], "device"),
        (["--set", "train.cuda_graphs=true"], "train.cuda_graphs"),
        (["--set", "model.dropout=1.5"], "dropout is 1.5"),
        (["--set", "tokenizer.vocab_size=-5"], "vocab_size is -5"),
        (["--set", "model.vocab_size=10"], "tokenizer.vocab_size"),
        (["--set", "model.n_labels=7"], "model.n_labels"),
        (["--set", "train.lr=inf"], "lr is 'inf'"),
        (["--set", "train.eps=0"], "eps is 0"),
        (["--set", "task.metric=pearson"], "task.metric is pearson"),
        (["--set", "task.problem=choices"], "classify-pair"),
        (["--set", "data.labels=yess=YES"], 'data.labels renames "yess"'),
    ],
)
def test_mistakes_end_in_a_sentence(
    changes: list[str], says: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {"--recipe": "bert-tiny", "--data": str(table), "--out": "mine"}
    for name in changes[::2]:
        usual.pop(name, None)
    options = [part for pair in usual.items() for part in pair]
    assert run("train", "classify-text", *options, *QUICK, *changes) == 2
    shown = capsys.readouterr()
    assert says in shown.err and "Traceback" not in shown.err and shown.err.count("\n") == 1
    assert not Path("mine").exists(), "nothing half-written"


def test_an_unknown_task(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "classify-txt", "--recipe", "bert-tiny", "--data", table, "--out", "mine") == 2
    assert 'Did you mean "classify-text"?' in capsys.readouterr().err


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    shown = capsys.readouterr().out
    for words in ("--data pairs.tsv --out mine/", "--resume", "torchrun", "--set train.lr=1e-4", "--dry-run"):
        assert words in shown


@pytest.mark.slow
def test_torchrun(table: Path, tmp_path: Path) -> None:
    """Two processes, as a user starts them, learn what one does; a mistake is said once."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "anyformer"]
    order = ["train", "classify-text", "--recipe", "bert-tiny", "--data", str(table), *QUICK, "--set=model.dropout=0"]
    order += ["--set=model.attention_dropout=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    for kind in ("ddp", "fsdp"):
        command = [*torchrun, *order, "--out", kind, f"--set=train.parallel={kind}"]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
    assert run(*order, "--out", "one") == 0

    def losses(folder: str) -> list[float]:
        rows = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        return [row["loss"] for row in rows if "split" not in row]

    assert losses("ddp") == pytest.approx(losses("one"), rel=1e-4)
    assert losses("fsdp") == pytest.approx(losses("one"), rel=1e-4)
    ran = subprocess.run([*torchrun, *order, "--out", "one"], env=environment, capture_output=True, text=True)
    assert ran.returncode != 0 and ran.stderr.count("--resume") == 1
