"""A folder that cannot be read, or written, is said in one sentence that names the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    af.build("gpt2-tiny").save(tmp_path / "model", format="hf")
    return tmp_path / "model"


def edit(folder: Path, **changes: Any) -> None:
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize("place", ["/proc/nobody/model", "/proc/model"])
def test_saving_where_nobody_may_write(place: str) -> None:
    with pytest.raises(af.FolderError, match=rf"^{place} "):
        af.build("gpt2-tiny").save(place)


def test_saving_nowhere() -> None:
    with pytest.raises(af.FolderError, match="by its path"):
        af.build("gpt2-tiny").save("")


def test_no_model_type(folder: Path) -> None:
    edit(folder, model_type=None)
    with pytest.raises(af.FolderError, match=r"config\.json .*model_type"):
        af.load(folder)


def test_an_architecture_that_is_no_list(folder: Path) -> None:
    edit(folder, architectures="GPT2LMHeadModel")
    assert af.load(folder).family == "gpt2"


def test_a_byte_mark(folder: Path) -> None:
    file = folder / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert af.load(folder).family == "gpt2"


def test_a_pointer_of_git_lfs(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(af.FolderError, match="git lfs pull"):
        af.load(folder)


def test_a_recipe_is_no_folder() -> None:
    with pytest.raises(af.FolderError, match=r'"gpt2-tiny" .*af\.build'):
        af.load("gpt2-tiny")


@pytest.mark.parametrize("place", [None, 3, ""])
def test_a_place_that_is_none(place: Any) -> None:
    with pytest.raises(af.FolderError, match="by its path"):
        af.load(place)


@pytest.mark.parametrize("dtype", [torch.int32, 3, "int32"])
def test_a_dtype_that_is_none(dtype: Any, folder: Path) -> None:
    with pytest.raises(af.ConfigError, match=rf'"{dtype}".*bfloat16'):
        af.load(folder, dtype=dtype)


def test_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    af.load("~/model").save("~/again")
    assert (folder.parent / "again" / "config.json").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("labels", odd) for odd in (3, 0.5, {"a": 1}, ["cat", True], [["cat"]])],
        *[("meaning", odd) for odd in ([1], {"a": 2})],
        *[("max_length", odd) for odd in ("long", 0, -1, [128])],
        *[("ids", odd) for odd in (7, ["a"], [-1], [10**12])],
        *[("bones", odd) for odd in (7, [1], [["a", "b"]], [[1, 2, 3]])],
        *[("mean_pose", odd) for odd in (7, [1.0], [[0.5, "a"]], [[0.5], [0.5, 0.5]])],
        ("runs_on", "yes"),
        ("name", []),
    ],
)
def test_what_a_task_says_of_itself(name: str, value: Any, tmp_path: Path) -> None:
    af.build("gpt2-tiny").save(tmp_path / "model")
    edit(tmp_path / "model", task={name: value})
    with pytest.raises(af.ConfigError, match=rf'config\.json, "task": "{name}" is .*; it must be '):
        af.load(tmp_path / "model")
