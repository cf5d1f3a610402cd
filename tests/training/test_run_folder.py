"""The folder of a run: refused where it holds something, continued with what it was begun with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.training.dotted_keys import flatten
from anyformer.training.run_folder import RECORD, check_folder, check_same, run_id, saved_schedule, start_run_folder
from anyformer.training.settings import TrainSettings


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "deeper", resume=False)
    assert not (tmp_path / "new").exists(), "checking writes nothing"
    (tmp_path / "file").write_text("")
    with pytest.raises(af.FolderError, match="is a file"):
        check_folder(tmp_path / "file", resume=False)
    with pytest.raises(af.FolderError, match="not empty"):
        check_folder(tmp_path, resume=False)
    with pytest.raises(af.FolderError, match="not empty"):
        check_folder(tmp_path, resume=True)
    assert not check_folder(tmp_path / "new", resume=True), "nothing to continue: it is started"
    start_run_folder(tmp_path / "run", {}, {})
    assert check_folder(tmp_path / "run", resume=True)
    with pytest.raises(af.FolderError, match="holds a run already: add --resume"):
        check_folder(tmp_path / "run", resume=False)


def test_what_a_run_was_begun_with(tmp_path: Path) -> None:
    settings, data = flatten({"train": TrainSettings(freeze=("a.*",))}), {"train": "abc"}
    start_run_folder(tmp_path, settings, data)
    record = json.loads((tmp_path / RECORD).read_text())
    assert record["settings"]["train.freeze"] == ["a.*"] and set(record["versions"]) >= {"anyformer", "torch", "python"}
    assert record["command"]
    check_same(tmp_path, settings, data)
    check_same(tmp_path, {**settings, "train.steps": 99, "train.log_every": 1}, data)
    check_same(tmp_path, {**settings, "train.newer": 1}, data)
    with pytest.raises(af.ConfigError, match=r"begun with train\.lr=0\.0005, and now it is 0\.1"):
        check_same(tmp_path, {**settings, "train.lr": 0.1}, data)
    with pytest.raises(af.ConfigError, match="data of the run"):
        check_same(tmp_path, settings, {"train": "changed"})


@pytest.mark.parametrize("damage", [{"settings": None}, {"settings": [1]}, {"versions": 3}, {"versions": {"torch": 2}}])
def test_a_record_that_makes_no_sense(damage: dict[str, Any], tmp_path: Path) -> None:
    start_run_folder(tmp_path, {}, {})
    record = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(json.dumps(record | damage))
    for action in (lambda: check_same(tmp_path, {}, {}), lambda: saved_schedule(tmp_path), lambda: run_id(tmp_path)):
        with pytest.raises(af.Error, match=rf'train\.json: "{next(iter(damage))}" is '):
            action()
