"""Folders from anywhere cannot reach outside of themselves, nor make a load wait or go in circles."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import anyformer as af

SECRET = "something private 5f2a"


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    af.build("gpt2-tiny").save(tmp_path / "model", format="hf")
    (tmp_path / "secret.txt").write_text(SECRET)
    return tmp_path / "model"


def edit(folder: Path, **changes: Any) -> None:
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("format", ["hf", "anyformer"])
@pytest.mark.parametrize("name", ["README.md", "LICENSE", "vocab.txt", "tokenizer_config.json"])
def test_a_file_outside_is_not_copied_into_an_export(name: str, format: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).symlink_to(tmp_path / "secret.txt")
    with pytest.warns(UserWarning, match=rf"{name}.*leads out of its folder"):
        model = af.load(folder)
    model.save(tmp_path / "out", format=format)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written and not any(SECRET.encode() in path.read_bytes() for path in written)
    with pytest.raises(af.Error, match=r"model(/\.\./|/| ).*(folder|tokenizer)"):
        af.Tokenizer.load(folder)


def test_a_link_inside_is_copied(folder: Path, tmp_path: Path) -> None:
    (folder / "card.txt").write_text("a card")
    (folder / "README.md").symlink_to("card.txt")
    af.load(folder).save(tmp_path / "out", format="hf")
    assert (tmp_path / "out" / "README.md").read_text() == "a card"


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "x/../../secret.safetensors", "link"])
def test_weights_that_an_index_finds_outside(name: str, folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    (folder / "link").symlink_to(tmp_path / "secret.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(af.FolderError, match="leads out of its folder"):
        af.load(folder)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_weights_that_are_no_file(kind: str, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.unlink()
    make = {"pipe": lambda: os.mkfifo(file), "device": lambda: file.symlink_to("/dev/zero"), "folder": file.mkdir}
    make[kind]()
    with pytest.raises(af.FolderError, match=r"model\.safetensors"):
        af.load(folder)


def test_a_gguf_file_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(af.FolderError, match=r"x\.gguf"):
        af.load(tmp_path / "x.gguf")


@pytest.mark.parametrize("base", [".", "own", "{folder}", "../{name}/own", "second"])
def test_a_base_has_none_itself(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is built on itself, or on one that is built on it, would be read for ever."""
    given = base.format(folder=tmp_path / "own", name=tmp_path.name)
    for name, other in (("own", given), ("second", "own")):
        af.build("gpt2-tiny").save(tmp_path / name)
        edit(tmp_path / name, base=other)
    monkeypatch.chdir(tmp_path / "own" if base == "." else tmp_path)
    for action in (af.load, af.Tokenizer.load):
        with pytest.raises(af.FolderError, match=f'"{re.escape(given)}" has a base'):
            action(tmp_path / "own")


@pytest.mark.parametrize("base", ["", "nowhere", "..", "/etc/passwd"])
def test_a_base_that_is_no_model(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    af.build("gpt2-tiny").save(tmp_path / "own")
    edit(tmp_path / "own", base=base)
    monkeypatch.chdir(tmp_path / "own")
    for action in (af.load, af.Tokenizer.load):
        with pytest.raises(af.FolderError):
            action(tmp_path / "own")


def test_a_file_with_more_tensors_than_names(folder: Path) -> None:
    """What stands in an index, and not in the file that it names, is missing."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(dict(list(tensors.items())[1:]), folder / "a.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "a.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(af.WeightsError, match="Missing"):
        af.load(folder)
