"""Stops of the explorer and experiments name the items they show; items name the places; all of that exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lectures.elsewhere import STOPS, Place, elsewhere, places
from lectures.page import article
from lectures.run import ROOT, Shown, load_decks

INVENTORY = (Path(__file__).parent / "ids.txt").read_text().split()
ON_NO_SLIDE = {"Flow"}  # the other method of rollout's paper
SCRIPTS = [f"experiments/{path.name}" for path in sorted((ROOT / "experiments").glob("[0-9][0-9]_*.py"))]


@pytest.mark.parametrize("place", places().values(), ids=lambda place: place.name)
def test_every_stop_and_every_experiment_names_items_that_exist(place: Place) -> None:
    assert bool(place.items) == (place.title not in ON_NO_SLIDE)
    assert not [one for one in place.items if one not in INVENTORY]
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


SUBJECTS = {  # what the part of a view shows that a stop opens: the items with that subject
    "tokens": "000-2.1-03 001-3-02",
    "embeddings": "000-2.1-10 001-3-03",
    "embeddings, sinusoidal-encoding-width-4": "002-2-01",
    "embeddings, sinusoidal-encoding-full-width": "000-2.7-03 000-2.7-04 003-11-05",
    "steps, 2-query-key-and-value": "000-2.2-09 001-4-06 002-7-03",
    "steps, 4-scores": "001-4-02 003-7-01 003-8-03",
    "steps, 5-attention-weights": "001-4-02 003-6-01",
    "steps, 6-weighted-values": "000-2.2-08 001-4-01 001-4-11",
    "steps, norm": "000-2.5-01 000-2.6-01 001-2-05",
    "mask": "000-2.9-02 000-2.9-05 003-12-01",
    "mask, pad": "002-11-01",
    "head": "000-1b-04",
    "heads": "000-2.3-01 001-5-01 002-8-02",
    "heads, all-heads": "004-17-02",
    "flow, rollout-of-token": "001-9-09",
    "flow, attention-flow-to": "",
    "next": "000-2.11-03 004-11-01",
    "next, temp": "003-6-01",
    "next, logit-lens": "004-11-01",
    "generation": "001-10-02 004-16-02",
    "generation, beam-search": "004-14-04",
    "alignment": "000-1b-06 000-2.10-03 003-2-06 003-2-07",
    "alignment, recurrent": "003-2-01 003-2-02 003-2-07",
    "input": "001-1-03 001-3-07 001-9-07 001-9-08",
    "stats": "000-1-05 000-2.2-10",
}


@pytest.mark.parametrize("stop", json.loads(STOPS.read_text(encoding="utf-8")), ids=lambda stop: stop["title"])
def test_a_stop_names_items_with_the_subject_of_its_view(stop: dict[str, Any]) -> None:
    part = stop.get("see") or next((name for name in ("pad", "temp") if name in stop), "")
    part = part or ("recurrent" if "recurrent" in stop["needs"] else "")
    assert stop["items"] == SUBJECTS[f"{stop['view']}, {part}" if part else stop["view"]].split()


def test_an_experiment_names_the_items_that_read_its_page() -> None:
    for one in load_decks().values():
        command, code = one.documented + one.beside, one.code + one.helpers
        scripts = re.findall(r"experiments/\w+\.py", command)
        assert all({one.id, *one.also} & set(places()[script].items) for script in scripts), one.id
        read = set(re.findall(r'"(?:experiments/)?(\d\d)-[a-z-]+(?:\.md)?"', code))
        assert read == {script[12:14] for script in scripts}, f"{one.id} reads the page of another experiment"


def test_an_item_says_where_else_it_is_shown() -> None:
    one = load_decks()["001-4-11"]
    assert [place.name for place in elsewhere(one)] == ["explorer stop 10"]
    assert "explorer stop 10: Weighted values" in article(one.id, Shown(one, "works"))
    merged = load_decks()["001-4-03"]  # which other slides say too
    assert "experiments/01_scale.py" in [place.name for place in elsewhere(merged)]
