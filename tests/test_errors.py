"""Messages stay short and harmless, whatever was handed in."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli import main
from anyformer.data.settings import DataSettings
from anyformer.errors import ALIASES, LIMIT, OURS, nearest
from anyformer.generation.options import OPTIONS
from anyformer.registry import FAMILIES, load_recipes
from anyformer.tasks import TASKS, find
from anyformer.training.settings import TrainSettings


def message(text: str) -> str:
    return str(af.InputError(text))


def test_a_usual_message_stays_as_it_is() -> None:
    assert message('top_k is "é…"; it must be 0 or more.') == 'top_k is "é…"; it must be 0 or more.'


@pytest.mark.parametrize("odd", ["\x1b[2J", "\x00", "\u202e", "\ud800", "\x9b31m", "\r", "a\nb"])
def test_nothing_reaches_the_terminal_but_text(odd: str) -> None:
    said = message(f"The field {odd} is unknown.")
    assert said.isprintable() and said.encode()
    assert said.startswith("The field ") and said.endswith(" is unknown.")


def test_a_long_list_is_cut_and_the_rest_of_the_sentence_stays() -> None:
    names = ", ".join(f"encoder.blocks.{i}.self.qkv.weight" for i in range(100))
    said = message(f"The weights do not fit. Missing (100): {names}. Convert the folder again.")
    assert len(said) <= LIMIT
    assert "The weights do not fit. Missing (100): encoder.blocks.0." in said
    assert "more" in said and "Convert the folder again." in said and "ANYFORMER_ERRORS=full" in said


@pytest.mark.parametrize("text", ["x" * 10_000, "word " * 2000, "a, " * 5000, "é; " * 9000, "\x1b" * 3000])
def test_whatever_it_is_it_is_short(text: str) -> None:
    assert len(message(text)) <= LIMIT and message(text).isprintable()


def test_an_error_around_an_error_is_short_too() -> None:
    inner = message("one, " * 500)
    said = message(f"data.tsv, line 7: {inner}")
    assert len(said) <= LIMIT and said.startswith("data.tsv, line 7") and said.count("ANYFORMER_ERRORS") == 1


def test_all_of_it_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_ERRORS", "full")
    names = ", ".join(f"w{i}" for i in range(1000))
    assert message(names) == names


def test_it_travels_between_processes() -> None:
    error = af.DataError("a\x1bb")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors and warnings about what a folder says."""
    af.build("gpt2-tiny").save(tmp_path / "x", format="hf")
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    (tmp_path / "x" / "config.json").write_text(json.dumps({**config, "model_type": "\x1b[31m" + "x" * 5000}))
    with pytest.raises(SystemExit) as ended:
        main.main(["convert", str(tmp_path / "x"), str(tmp_path / "y"), "--to", "hf"])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and "\x1b" not in shown and len(shown) < LIMIT + 20


def test_warnings_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit):
        main.main(["recipes"])
    shown = warnings.formatwarning("\x1b[2J" + "x" * 5000, UserWarning, "file.py", 1)
    assert shown.startswith("anyformer: \\x1b") and "\x1b" not in shown and len(shown) < LIMIT + 20


SECTIONS = ["data.max_length", "model.d_model", "model.n_layers", "model.seed", "task.normalize", "train.batch_size"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("normalise", SECTIONS, "task.normalize"),
        ("batch_siz", SECTIONS, "train.batch_size"),
        ("train.batch_siz", SECTIONS, "train.batch_size"),
        ("trian.batch_size", SECTIONS, "train.batch_size"),
        ("hidden_size", SECTIONS, "model.d_model"),
        ("model.hidden_size", SECTIONS, "model.d_model"),
        ("hidden-size", SECTIONS, "model.d_model"),
        ("hidden_size", ["d_model", "d_hidden"], "d_model"),
        ("num_hidden_layers", SECTIONS, "model.n_layers"),
        ("max_tokens", ["max_length", "max_new_tokens"], "max_new_tokens"),
    ],
)
def test_the_nearest_is_the_one_that_was_meant(name: str, known: list[str], meant: str) -> None:
    assert nearest(name, known) == f' Did you mean "{meant}"?'


@pytest.mark.parametrize("name", ["weather", "grad_clip", "learning_rate"])
def test_nothing_near_is_no_hint(name: str) -> None:
    assert nearest(name, SECTIONS) == ""


def test_every_alias_is_of_a_setting_that_there_is() -> None:
    load_recipes()
    tasks = [find(name) for name in TASKS]
    known = {f"model.{name}" for family in FAMILIES.values() for name in family.config.field_names()}
    known |= {f"data.{name}" for name in DataSettings.field_names()}
    known |= {f"train.{name}" for name in TrainSettings.field_names()}
    known |= {"data", "out", "recipe", "resume", "valid"}  # arguments of af.train
    known |= {*OPTIONS, "top", *(name for task in tasks for name in task.takes)}
    assert set(ALIASES) <= known
    assert sum(map(len, ALIASES.values())) == len(OURS), "a name has two meanings"
