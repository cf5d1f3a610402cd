"""Examples and a template become a prompt; a mistake names the file and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import anyformer as af
from anyformer.tokenizers.few_shot import make_few_shot_prompt

CAPITALS = [("France", "Paris"), ("Italy", "Rome")]


def test_the_prompt_of_the_paper() -> None:
    shots = make_few_shot_prompt(CAPITALS)
    assert shots.prompt("Spain") == "Q: France\nA: Paris\n\nQ: Italy\nA: Rome\n\nQ: Spain\nA:"
    assert shots.stop == "\n\n"


def test_a_file_with_and_without_headings(tmp_path: Path) -> None:
    plain, headed, named = tmp_path / "plain.tsv", tmp_path / "headed.tsv", tmp_path / "named.tsv"
    plain.write_text("France\tParis\n\nItaly\tRome\n")
    headed.write_text("Question\tAnswer\r\nFrance\tParis\r\nItaly\tRome\r\n")
    named.write_text("\ufeffcountry\tcapital\nFrance\tParis\nItaly\tRome\n")
    expected = make_few_shot_prompt(CAPITALS)
    assert make_few_shot_prompt(plain) == make_few_shot_prompt(str(headed)) == expected
    template = "{country} => {capital}\n"
    assert make_few_shot_prompt(named, template).prompt("Spain") == "France => Paris\nItaly => Rome\nSpain =>"
    assert make_few_shot_prompt(plain, "{0} => {1}\n") == make_few_shot_prompt(named, template)


def test_more_columns() -> None:
    shots = make_few_shot_prompt([("It rains.", "Is it wet?", "yes")], "{0} {1} -> {2};{{}}\n")
    assert shots.prompt("It snows.\tIs it hot?") == "It rains. Is it wet? -> yes;{}\nIt snows. Is it hot? ->"
    assert shots.stop == ";{}\n"
    assert make_few_shot_prompt([("It rains.", "Is it wet?", "yes")]).prompt("a\tb").endswith("\n\nQ: a\nb\nA:")
    with pytest.raises(af.InputError, match=r"3 columns.* has 1"):
        shots.prompt("It snows.")


@pytest.mark.parametrize(
    ("content", "template", "says"),
    [
        ("France\tParis\nItaly\n", None, "line 2, has no tab"),
        ("France\tParis\nItaly\tRome\tLazio\n", None, "line 2, has 3 columns"),
        ("", None, "is empty"),
        ("question\tanswer\n", None, "header"),
        ("France\tParis\n", "{0} {2}", "{0}, {1}"),
        ("country\tcapital\nFrance\tParis\n", "{contry} {capital}", 'Did you mean "country"'),
        ("France\tParis\n", "{0", "template"),
        ("France\tParis\nItaly\tRome\n", "{0.__class__} {1}", "{0.__class__}"),
        ("France\tParis\n", "{1} {0}", "answer, {1}"),
        ("France\tParis\n", "Q: {0}", "answer, {1}"),
    ],
)
def test_mistakes_are_one_sentence(content: str, template: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "shots.tsv"
    file.write_text(content)
    with pytest.raises(af.InputError, match=re.escape(says)):
        make_few_shot_prompt(file, template)


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(af.InputError, match=r"nowhere\.tsv"):
        make_few_shot_prompt(tmp_path / "nowhere.tsv")
    (tmp_path / "latin.tsv").write_bytes(b"France\tParis\nM\xfcnchen\tBayern\n")
    with pytest.raises(af.Error, match=r"latin\.tsv, line 2, .*UTF-8"):
        make_few_shot_prompt(tmp_path / "latin.tsv")
    for rows in ([], ["a", "b"], [("a", "b"), ("c",)], [("a", 1)]):
        with pytest.raises(af.InputError, match="shots"):
            make_few_shot_prompt(rows)  # type: ignore[arg-type]
