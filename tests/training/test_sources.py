"""What --recipe names: a recipe, a folder, or a shipped model by its name, which trains exactly as its folder does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import anyformer as af
from tests.shelf import LABELED, PAIRS, train_classifier

FEW = {"steps": 2, "batch_size": 4, "device": "cpu"}


def pooled(folder: Path, mode: str | list[str]) -> None:
    """Make an encoder's folder one of sentence-transformers."""
    kinds = (("Transformer", ""), ("Pooling", "1_Pooling"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sentence encoder by the name "tiny-encoder" among the shipped models."""
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    shutil.copytree(train_classifier(tmp_path, "bert-tiny", "base"), home / "tiny-encoder")
    entry = {"name": "tiny-encoder", "task": "classify-text", "description": "for a test", "parameters": 1, "files": {}}
    (home / "models.json").write_text(json.dumps({"models": [entry]}))
    monkeypatch.setenv("ANYFORMER_MODELS", str(home))
    return home / "tiny-encoder"


def test_a_name_trains_as_its_folder_does(encoder: Path, tmp_path: Path) -> None:
    """The pooling of a sentence encoder is found under its name too."""
    pooled(encoder, "mean")
    (tmp_path / "x.tsv").write_text(LABELED)
    for out, recipe in (("by-name", "tiny-encoder"), ("by-path", encoder)):
        af.train("classify-text", recipe=recipe, data=tmp_path / "x.tsv", out=tmp_path / out, **FEW)
        config = json.loads((tmp_path / out / "config.json").read_text())
        assert config["model"]["pooling"] == config["task"]["pooling"] == "mean"
    one, other = (load_file(tmp_path / out / "model.safetensors") for out in ("by-name", "by-path"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("mode", "found"), [("cls", "cls"), ("max", "max"), ("mean", "mean"), (["mean", "max"], None)])
def test_embed_goes_on_with_the_pooling_that_a_folder_has(
    encoder: Path, tmp_path: Path, mode: str | list[str], found: str | None
) -> None:
    """Not with the mean, whatever the folder says; once trained here, the folder keeps it."""
    pooled(encoder, mode)
    (tmp_path / "x.tsv").write_text(PAIRS.replace("source\ttarget", "first\tsecond"))

    def go(recipe: str | Path, out: str) -> None:
        af.train("embed", recipe=recipe, data=tmp_path / "x.tsv", out=tmp_path / out, **FEW)

    if found is None:
        with pytest.raises(af.FolderError, match=r"mean and max .*task\.pooling"):
            go("tiny-encoder", "first")
        return
    go("tiny-encoder", "first")
    go(tmp_path / "first", "second")
    for out in ("first", "second"):
        assert json.loads((tmp_path / out / "config.json").read_text())["task"]["pooling"] == found
