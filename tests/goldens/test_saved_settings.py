"""Settings as runs of every task saved them in the past are read with the values that they had.

`saved_settings.json` has the sections of config.json, the settings of train.json and the state of a checkpoint; it is
not rewritten when settings are renamed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer import registry
from anyformer.data.settings import DataSettings, TokenizerSettings
from anyformer.tasks import find
from anyformer.training.settings import TrainSettings
from anyformer.training.state import TrainState
from anyformer.upgrades import FAMILIES

RENAMED_VALUES = {'"discriminate"': '"replaced_tokens"'}  # values that are written otherwise today
ADDED = (
    "epochs",
    "no_answer_margin",
    "temperature",
    "unsure_below",
)  # settings that came later, which must keep their defaults
SQUARES = {"image_size", "patch_size"}  # of MAE, one number then
REPLACED = {"scale_by_width"}  # GPT-2's spelling of `score`, true in all of them
SAVED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "saved_settings.json").read_text())


def values(settings: Any) -> list[str]:
    """All values, however deep they are nested, whatever the fields are called."""
    if isinstance(settings, dict):
        return sorted(value for inner in settings.values() for value in values(inner))
    return [json.dumps(settings)]


def known_then(read: dict[str, Any], usual: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that came later, which have their defaults."""
    later = {name for name in ADDED if name in read and name not in saved}
    assert all(read[name] == usual[name] for name in later)
    return {name: read[name] for name in read if name not in later}


@pytest.mark.parametrize("task", SAVED)
def test_options_of_a_task(task: str) -> None:
    kind, said = find(task), SAVED[task]["task"]
    kept = kind.saved_options(said)
    read = known_then(kind.options_class.from_json(kept).to_json(), kind.options_class().to_json(), kept)
    assert values(read) == values(kept)
    assert len(kept) == len(read)


@pytest.mark.parametrize("task", SAVED)
def test_settings_of_a_model(task: str) -> None:
    """Fields of the same name have the same values, and every other saved value is one of the other fields now."""
    row = SAVED[task]
    settings = registry.family(FAMILIES.get(row["family"], row["family"])).config.from_json(row["model"])
    assert_kept(row["model"], settings.to_json())


def assert_kept(saved: dict[str, Any], now: dict[str, Any]) -> None:
    was = {name: value for name, value in saved.items() if name not in REPLACED}
    for name in now.keys() & was.keys():
        if isinstance(was[name], dict):
            assert_kept(was[name], now[name])
        else:
            sides = name in SQUARES and isinstance(was[name], int) and isinstance(now[name], list)
            square = [was[name]] * 2 if sides else was[name]
            assert [RENAMED_VALUES.get(value, value) for value in values(square)] == values(now[name])
    renamed = {name: value for name, value in was.items() if name not in now}
    new = {name: value for name, value in now.items() if name not in was}
    assert not Counter(values(renamed)) - Counter(values(new))


@pytest.mark.parametrize("task", SAVED)
def test_settings_of_a_run(task: str) -> None:
    row = SAVED[task]
    for section, kind in (("train", TrainSettings), ("data", DataSettings), ("tokenizer", TokenizerSettings)):
        if section in row:
            read = known_then(kind.from_json(row[section]).to_json(), kind().to_json(), row[section])
            assert values(read) == values(row[section])


@pytest.mark.parametrize("task", [task for task in SAVED if "state" in SAVED[task]])
def test_the_state_of_a_checkpoint(task: str) -> None:
    assert values(TrainState.from_json(SAVED[task]["state"]).to_json()) == values(SAVED[task]["state"])


def test_a_saved_key_that_the_task_does_not_know_is_an_error() -> None:
    said = SAVED["classify-text"]["task"]
    with pytest.raises(af.ConfigError, match="bogus"):
        find("classify-text").saved_options({**said, "bogus": 1})
    assert "bogus" not in find("tag").saved_options({**said, "bogus": 1})  # what another task wrote
