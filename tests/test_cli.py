"""The command line: it teaches, it converts, and a mistake ends in one sentence and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.cli import list_recipes, main
from anyformer.tasks import TASKS, find


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for line in ("anyformer demo", "anyformer recipes", "anyformer convert gpt2/ mine/ --to anyformer"):
        assert line in shown


def test_recipes_are_listed_with_their_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in af.recipes())
    assert "124,439,808" in shown and "GPT-2 (Radford et al. 2019)" in shown


def test_counted_parameters_are_those_of_the_built_model() -> None:
    counts = {name: parameters for name, _, parameters, _ in list_recipes()}
    for name in ("gpt2-tiny", "transformer-tiny", "detr-tiny"):
        assert counts[name] == sum(parameter.numel() for parameter in af.build(name).parameters())


def test_convert_goes_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = af.build("gpt2-tiny")
    model.save(tmp_path / "own")
    assert run("convert", str(tmp_path / "own"), str(tmp_path / "hf"), "--to", "hf") == 0
    assert run("convert", str(tmp_path / "hf"), str(tmp_path / "back"), "--to", "anyformer") == 0
    assert str(tmp_path / "back") in capsys.readouterr().out
    ids = torch.randint(0, 256, (2, 9))
    for folder in ("hf", "back"):
        assert torch.equal(af.load(tmp_path / folder)(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["convert", "nowhere", "out", "--to", "hf"], "nowhere does not exist"),
        (["convert", "nowhere", "out", "--to", "onyx"], "'onyx' is not one of"),
        (["convert", "nowhere", "out"], "Missing option '--to'"),
        (["recipe"], "recipe"),
        (["demo", "--out", "file"], "cannot write to file"),
    ],
)
def test_mistakes_end_in_a_sentence_and_code_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err and "Traceback" not in shown.err and not shown.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing half-written"


def test_python_dash_m(tmp_path: Path) -> None:
    source = Path(af.__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-m", "anyformer", "convert", "nowhere", "out", "--to", "hf"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2 and ran.stderr.startswith("anyformer: nowhere does not exist") and not ran.stdout
    assert ran.stderr.count("\n") == 1


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tasks") == 0
    shown = capsys.readouterr().out
    for name in TASKS:
        assert any(line.split()[0] == name for line in shown.splitlines()), name
    assert "text, label" in shown and "source, target" in shown


def test_eval_prints_the_fields_own_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a folder made here, with the figure that counts first; a mistake in the file is one sentence with its line."""
    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    kind = find("classify-text")
    kind.begin("bert-tiny", kind.read(tmp_path / "train.tsv")).save(tmp_path / "model")
    arguments = ("eval", "classify-text", "--model", str(tmp_path / "model"), "--data")
    assert run(*arguments, str(tmp_path / "train.tsv")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "accuracy" and float(lines[0].split()[1]) in (0, 0.5, 1)
    assert [line.split()[0] for line in lines[1:4]] == ["f1", "matthews", "loss"]
    assert lines[-1] == f"2 rows of {tmp_path / 'train.tsv'}"
    (tmp_path / "dev.tsv").write_text("text\tlabel\ngood\tyes\nhm\tmaybe\n")
    assert run(*arguments, str(tmp_path / "dev.tsv")) == 2
    assert 'dev.tsv, line 3: the label "maybe" is new' in capsys.readouterr().err
    assert run(*arguments, str(tmp_path / "nowhere.tsv")) == 2
    assert "nowhere.tsv does not exist" in capsys.readouterr().err
    assert run("eval", "classify-txt", "--model", "x", "--data", "y") == 2
    assert 'Did you mean "classify-text"?' in capsys.readouterr().err
