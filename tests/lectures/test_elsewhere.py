"""Stops of the explorer and experiments name the items they show; items name the places; all of that exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from lectures.elsewhere import Place, elsewhere, places
from lectures.page import article
from lectures.run import ROOT, Shown, load_decks

INVENTORY = (Path(__file__).parent / "ids.txt").read_text().split()
SCRIPTS = [f"experiments/{path.name}" for path in sorted((ROOT / "experiments").glob("[0-9][0-9]_*.py"))]


@pytest.mark.parametrize("place", places().values(), ids=lambda place: place.name)
def test_every_stop_and_every_experiment_names_items_that_exist(place: Place) -> None:
    assert place.items and not [one for one in place.items if one not in INVENTORY]
    assert len(set(place.items)) == len(place.items)


def test_there_are_all_stops_and_all_experiments() -> None:
    stops = [name for name in places() if name.startswith("explorer stop ")]
    assert stops == [f"explorer stop {number}" for number in range(1, 28)]
    assert [name for name in places() if name not in stops] == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_of_an_experiment_names_its_items(name: str) -> None:
    """python experiments/frame.py writes that line again."""
    place = places()[name]
    text = " ".join((ROOT / place.page).read_text(encoding="utf-8").split())
    assert f"shows one): {', '.join(place.items)}. " in text


def test_an_item_says_where_else_it_is_shown() -> None:
    one = load_decks()["001-4-11"]
    assert [place.name for place in elsewhere(one)] == ["explorer stop 10"]
    assert "explorer stop 10: Weighted values" in article(one.id, Shown(one, "works"))
    merged = load_decks()["001-4-03"]  # which other slides say too
    assert "experiments/01_scale.py" in [place.name for place in elsewhere(merged)]
