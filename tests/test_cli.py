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
