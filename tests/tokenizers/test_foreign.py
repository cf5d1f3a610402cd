"""Whether a text is in another language: silent on English, names and numbers; loud on German, French and others."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyformer.tokenizers.foreign import other_than

EVERYDAY = Path(__file__).parents[2] / "models" / "everyday"


def rows(language: str) -> list[list[str]]:
    path = EVERYDAY / f"en-{language}.tsv"
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("language", "name"), [("de", "German"), ("fr", "French")])
def test_everyday_sentences(language: str, name: str) -> None:
    found = rows(language)
    assert [row[1] for row in found if other_than("en", row[1])] == []
    assert sum(other_than("en", row[2]) == name for row in found) >= 0.9 * len(found)
    assert sum(other_than(language, row[2]) is None for row in found) >= 0.98 * len(found)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Wo ist der Bahnhof?", "German"),
        ("Je ne sais pas où il est.", "French"),
        ("No sé dónde está la estación.", "Spanish"),
        ("Non so dove sono le chiavi.", "Italian"),
        ("Ik weet niet waar het station is.", "Dutch"),
        ("Não sei onde está a estação.", "Portuguese"),
        ("Где находится вокзал?", "Russian or another language in Cyrillic letters"),
        ("駅はどこですか。", "Japanese"),
    ],
)
def test_other_languages(text: str, name: str) -> None:
    assert other_than("en", text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1,250",
        "Angela Merkel",
        "La Paz",
        "Die Hard",
        "Déjà vu?",
        "Rio de Janeiro, São Paulo",
        "El Niño is coming.",
        "Tom reads Der Spiegel and Le Monde.",
        "Crème brûlée, please.",
        "So what?",
        "THE MAN IS IN THE GARDEN.",
        "teh man si in teh garden",
        "\U0001f600",
    ],
)
def test_names_and_short_texts_are_left_alone(text: str) -> None:
    assert other_than("en", text) is None
