"""Messages stay short and harmless, whatever was handed in."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli import main
from anyformer.errors import LIMIT


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
