"""The everyday sentences: what they are, that nobody learns from them, and how a translator is scored on them."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "models"
HAS_DATA = Path(os.environ.get("ANYFORMER_DATA", "/nowhere"), "tatoeba_en_de").is_dir()


def script(name: str) -> Any:
    """One of the scripts beside the models, which find each other by the folder they are in."""
    sys.path.insert(0, str(MODELS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(MODELS))


everyday, held_out = script("everyday"), script("held_out")


@pytest.mark.parametrize("language", ["de", "fr"])
def test_sentences_are_whole(language: str) -> None:
    rows = held_out.everyday(language)
    kinds = Counter(row[0] for row in rows)
    assert kinds == {**everyday.QUOTAS, "lecture": 3, "by hand": 3}
    assert sum(everyday.QUOTAS.values()) == 200
    assert len({held_out.words(row[1]) for row in rows}) == len(rows)
    assert all(len(row) >= 3 and all(part.strip() == part and part for part in row) for row in rows)
    assert not any(mark in part for row in rows for part in row for mark in "\u00a0\u202f\u2019")


@pytest.mark.skipif(not HAS_DATA, reason="needs the Tatoeba pairs (ANYFORMER_DATA)")
@pytest.mark.parametrize("language", ["de", "fr"])
def test_they_are_drawn_again_the_same(language: str) -> None:
    drawn = everyday.draw(language)
    assert [row for row in held_out.everyday(language) if row[0] in everyday.QUOTAS] == drawn


def test_near_sentences_are_found() -> None:
    held = held_out.HeldOut(["Tom was born in 1979.", "Come in!"], ["Why not?"])
    near = [
        "tom was BORN in 1979",
        "Tom was born in 2001.",
        "Tom was born early in 1979.",
        "Was born in 1979.",
        "come in",
    ]
    assert all(held.has(text) for text in near)
    assert held.has("I know.", "Why not?")
    assert not any(held.has(text) for text in ("Tom was sick in 2001.", "Come on!", "Why not now?"))


def test_names_and_numbers_that_must_stay() -> None:
    rows = [
        ["names", "Emma met Noah at 17:45.", "Emma traf Noah um 17:45 Uhr."],
        ["numbers", "The 3 men paid 1,250 euros in Rome.", "Die 3 Männer zahlten in Rom 1.250 Euro."],
        ["news", "The dog sleeps.", "Der Hund schläft.", "Der Hund ist am Schlafen."],
    ]
    right = ["Emma traf Noah um 17:45 Uhr.", "Die 3 Männer zahlten 1.250 Euro.", "Der Hund schläft."]
    found = everyday.score(rows, right)
    assert (found["with names or numbers"], found["names and numbers kept"]) == (2, 100)
    wrong = ["Emma traf Noahs um 17:45 Uhr.", "Die 33 Männer zahlten 1.250 Euro.", "Der Hund schläft."]
    found = everyday.score(rows, wrong)
    assert found["lost"] == [0, 1] and found["names and numbers kept"] == 0
    assert everyday.score(rows, [row[2] for row in rows])["chrF"] == pytest.approx(100)
