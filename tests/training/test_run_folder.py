"""The folder of a run: refused where it holds something, continued with what it was begun with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.tasks.classify_text import ClassifyOptions
from anyformer.training.dotted_keys import flatten
from anyformer.training.run_folder import (
    RECORD,
    check_folder,
    check_same,
    run_id,
    saved_recipe,
    saved_schedule,
    start_run_folder,
)
from anyformer.training.settings import TrainSettings
from anyformer.upgrades import FIELDS


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "deeper", resume=False)
    assert not (tmp_path / "new").exists(), "checking writes nothing"
    (tmp_path / "file").write_text("")
    with pytest.raises(af.FolderError, match="/file is a file"):
        check_folder(tmp_path / "file", resume=False)
    with pytest.raises(af.FolderError, match="not empty"):
        check_folder(tmp_path, resume=False)
    with pytest.raises(af.FolderError, match="not empty"):
        check_folder(tmp_path, resume=True)
    assert not check_folder(tmp_path / "new", resume=True), "nothing to continue: it is started"
    start_run_folder(tmp_path / "run", {}, {})
    assert check_folder(tmp_path / "run", resume=True)
    with pytest.raises(af.FolderError, match=r"/run .*--resume"):
        check_folder(tmp_path / "run", resume=False)


def test_what_a_run_was_begun_with(tmp_path: Path) -> None:
    train, data = TrainSettings(freeze=("a.*",)), {"train": "abc"}
    settings = {"train": train}
    start_run_folder(tmp_path, flatten(settings), data)
    record = json.loads((tmp_path / RECORD).read_text())
    assert record["settings"]["train.freeze"] == ["a.*"] and set(record["versions"]) >= {"anyformer", "torch", "python"}
    assert record["command"]
    check_same(tmp_path, settings, data)
    check_same(tmp_path, {"train": replace(train, steps=99, log_every=1)}, data)
    with pytest.raises(af.ConfigError, match=r"train\.lr=0\.0005, .* 0\.1\b"):
        check_same(tmp_path, {"train": replace(train, lr=0.1)}, data)
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


def test_settings_that_came_with_a_later_version_or_have_another_name_now(tmp_path: Path) -> None:
    train = TrainSettings(warmup_steps=7)
    saved = flatten({"train": train})
    was = next(old for old, new in FIELDS["TrainSettings"].items() if new == "warmup_steps")
    saved[f"train.{was}"] = saved.pop("train.warmup_steps")
    del saved["train.ema_decay"]
    start_run_folder(tmp_path, saved, {})
    check_same(tmp_path, {"train": train}, {})
    assert saved_schedule(tmp_path)["train.warmup_steps"] == 7
    with pytest.raises(af.ConfigError, match=r"train\.warmup_steps=7"):
        check_same(tmp_path, {"train": replace(train, warmup_steps=8)}, {})


def test_a_run_with_old_values_continues(tmp_path: Path) -> None:
    start_run_folder(tmp_path, {"task.problem": "classes"}, {})
    check_same(tmp_path, {"task": ClassifyOptions(problem="classification")}, {})
    with pytest.raises(af.ConfigError, match=r"task\.problem='classification'"):
        check_same(tmp_path, {"task": ClassifyOptions(problem="regression")}, {})


def test_an_old_recipe_continues_only_the_run_that_began_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["anyformer", "train", "pose", "--recipe", "joints-96"])
    start_run_folder(tmp_path, {}, {})
    assert saved_recipe(tmp_path, "joints-96") == "keypoint-detr-96"
    assert saved_recipe(tmp_path, "joints-tiny") == "joints-tiny"
    assert saved_recipe(tmp_path, "vit-tiny") == "vit-tiny"
