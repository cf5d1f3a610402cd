"""Settings as dotted keys: read from text, from files and from Python, checked, with the nearest name for a slip."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import anyformer as af
from anyformer.config import Settings, parse
from anyformer.data.settings import DataSettings
from anyformer.tasks.classify_text import ClassifyOptions
from anyformer.training.dotted_keys import (
    flatten,
    parse_assignments,
    read_config,
    resolve,
    show,
    task_options,
    upgrade_resumed,
)
from anyformer.training.settings import TrainSettings
from anyformer.upgrades import FIELDS


@dataclass(frozen=True, kw_only=True)
class Inner(Settings):
    kind: Literal["a", "b"] = "a"
    size: int = 3


@dataclass(frozen=True, kw_only=True)
class Outer(Settings):
    n_layers: int = 2
    inner: Inner = Inner()
    other: Inner | None = None
    seed: int = 0
    patience: int = 0


SECTIONS: dict[str, Settings] = {"model": Outer(), "train": TrainSettings()}


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("20_000", int, 20_000),
        ("1e4", int, 10_000),
        ("-3", int, -3),
        ("3e-4", float, 3e-4),
        ("5", float, 5.0),
        ("true", bool, True),
        ("off", bool, False),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("none", str | None, None),
        ("a.*, b", tuple[str, ...], ("a.*", "b")),
        ("0.9,0.98", tuple[float, ...] | None, (0.9, 0.98)),
        ("b", Literal["a", "b"], "b"),
        ('{"size": 4}', Inner, Inner(size=4)),
        ('[{"size": 4}, {"kind": "b"}]', tuple[Inner, ...], (Inner(size=4), Inner(kind="b"))),
    ],
)
def test_texts_become_values(text: str, hint: Any, value: Any) -> None:
    found = parse(text, hint)
    assert found == value and type(found) is type(value)


def test_a_tasks_own_settings_by_their_names() -> None:
    """Only what was given, even where it is the usual; a setting of another section is a mistake that names these."""
    assert task_options(Outer, {"task.seed": "0", "inner.size": "5"}) == {"seed": 0, "inner": Inner(size=5)}
    with pytest.raises(af.ConfigError, match=r'"train\.lr".*task\.n_layers, task\.inner\.kind'):
        task_options(Outer, {"train.lr": "3"})


@pytest.mark.parametrize(("text", "hint"), [("2.5", int), ("inf", int), ("x", float), ("2", bool), ("c", Literal["a"])])
def test_texts_that_do_not_fit(text: str, hint: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(text, hint)


def test_keys_reach_their_sections() -> None:
    given = {"train.lr": "3e-4", "n_layers": "4", "model.inner.kind": "b", "model.other": {"size": 9}, "steps": 7}
    result = resolve(SECTIONS, given)
    assert result["model"] == Outer(n_layers=4, inner=Inner(kind="b"), other=Inner(size=9))
    assert result["train"] == TrainSettings(lr=3e-4, steps=7)
    assert SECTIONS["model"] == Outer(), "the defaults stay"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"train.step": "5"}, '"train.step". Did you mean "train.steps"?'),
        ({"n_layer": "5"}, 'Did you mean "model.n_layers"?'),
        ({"patience": "5"}, "model.patience or train.patience"),
        ({"train.steps": "many"}, "train.steps is 'many'"),
        ({"train.steps": 2.5}, "train.steps is 2.5"),
        ({"train.schedule": "cosin"}, "'inverse_sqrt', 'cosine'"),
        ({"train.steps": "0"}, "steps is 0"),
        ({"train.betas": "0.9"}, "two numbers"),
        ({"train": {"stepz": 1}}, 'Did you mean "train.steps"?'),
    ],
)
def test_slips_are_said_with_the_nearest(given: dict[str, Any], says: str) -> None:
    with pytest.raises(af.ConfigError) as error:
        resolve(SECTIONS, given)
    assert says in str(error.value)


OLD: dict[str, Settings] = {"train": TrainSettings(), "data": DataSettings(), "task": ClassifyOptions()}


@pytest.mark.parametrize(
    ("key", "today"),
    [
        *((f"train.{old}", f"train.{new}") for old, new in FIELDS["TrainSettings"].items()),
        (f"data.{'share'}", "data.fraction"),  # in two parts, so that a script which renames settings leaves them
        (f"task.{'agree'}", "task.r_drop"),
        ("keep", "train.keep_checkpoints"),
    ],
)
def test_an_old_name_of_a_setting_is_an_error_with_the_name_of_today(key: str, today: str) -> None:
    with pytest.raises(af.ConfigError, match=f'"{key}" .*"{re.escape(today)}"'):
        resolve(OLD, {key: "2"})


def test_an_old_value_of_a_setting_is_an_error_with_the_value_of_today() -> None:
    with pytest.raises(af.ConfigError, match=r'task\.problem .*"classes" .*"classification"'):
        resolve(OLD, {"task.problem": "classes"})


@pytest.mark.parametrize(
    ("given", "today"),
    [
        ({f"train.{'keep'}": "2"}, {"train.keep_checkpoints": "2"}),
        ({"keep": 2}, {"train.keep_checkpoints": 2}),
        ({"train": {"keep": 2, "lr": 0.1}}, {"train.keep_checkpoints": 2, "train.lr": 0.1}),
        ({"task.problem": "classes"}, {"task.problem": "classification"}),
        ({"problem": "number"}, {"problem": "number"}),  # not what the run saved
        ({f"train.{'clip'}": 1}, {f"train.{'clip'}": 1}),  # nothing of that name was saved
        ({"train.keep_checkpoints": 2}, {"train.keep_checkpoints": 2}),
    ],
)
def test_old_names_continue_the_run_that_saved_them(given: dict[str, Any], today: dict[str, Any]) -> None:
    saved = {f"train.{'keep'}": 2, "train.lr": 0.1, "task.problem": "classes"}
    assert upgrade_resumed(OLD, given, saved) == today


def test_assignments() -> None:
    assert parse_assignments(["train.lr=3e-4", "x = a=b"]) == {"train.lr": "3e-4", "x": "a=b"}
    with pytest.raises(af.ConfigError, match="--set KEY=VALUE"):
        parse_assignments(["train.lr"])


def test_files_and_what_is_shown_are_the_same_settings(tmp_path: Path) -> None:
    """YAML reads 3e-4 as a text, nested and dotted keys mix, and the list of --dry-run is itself such a file."""
    wanted = resolve(SECTIONS, {"train.lr": 3e-4, "train.freeze": ["a.*"], "model.inner.size": 5})
    (tmp_path / "a.yaml").write_text("train:\n  lr: 3e-4\n  freeze: [a.*]\nmodel.inner:\n  size: 5\n")
    (tmp_path / "a.json").write_text(
        json.dumps({"train.lr": 3e-4, "train": {"freeze": ["a.*"]}, "model.inner.size": 5})
    )
    (tmp_path / "b.yaml").write_text(show(wanted))
    for name in ("a.yaml", "a.json", "b.yaml"):
        assert resolve(SECTIONS, read_config(tmp_path / name)) == wanted
    assert set(flatten(wanted)) >= {"train.steps", "model.inner.size", "model.n_layers"}
    assert "train.lr: 0.0003" in show(wanted).splitlines()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", '{"a": 1,\n}', "a.json, line 2, .*JSON"),
        ("a.yaml", "a: 1\nb: [", "a.yaml, line 2, .*YAML"),
        ("a.yaml", "just words", r"a\.yaml .*train\.steps"),
        ("a.yaml", None, r"a\.yaml .*No such file"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(af.ConfigError, match=says):
        read_config(tmp_path / name)


@pytest.mark.parametrize("name", sorted({af.registry.recipe(name).family.name: name for name in af.recipes()}.values()))
def test_settings_of_every_family_are_json_and_come_back(name: str, tmp_path: Path) -> None:
    """Nested settings too, such as the rotary angles of Llama: in the record of a run and in what --dry-run prints."""
    config = af.registry.recipe(name).config
    kept = json.loads(json.dumps(flatten({"model": config})))
    assert resolve({"model": config}, kept)["model"] == config
    (tmp_path / "x.yaml").write_text(show({"model": config}))
    assert resolve({"model": config}, read_config(tmp_path / "x.yaml"))["model"] == config
    typed = {key: value if isinstance(value, str) else json.dumps(value) for key, value in kept.items()}
    assert resolve({"model": config}, typed)["model"] == config
