"""Every item of the lectures that is fast: it shows something, and its assertions hold and can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from lectures.item import DECKS, Item
from lectures.page import page
from lectures.run import Shown, by_deck, load_decks, run

ITEMS = load_decks()
FAST = [one for one in ITEMS.values() if one.show is not None and one.cost == "fast"]
LONGER = [one for one in ITEMS.values() if one.show is not None and one.cost in ("slow", "training")]
BROKEN = [one for one in ITEMS.values() if one.wrong]
UNFINISHED = ("000", "004")  # decks whose items are not all written yet
named = {"ids": lambda one: one.id}


def check(one: Item) -> None:
    shown = run(one)
    if shown.verdict == "skipped":
        pytest.skip(shown.error)
    assert shown.verdict == one.status, shown.error
    assert shown.things, "an item returns what a person wants to see"


@pytest.mark.parametrize("one", FAST, **named)
def test_fast_items(one: Item) -> None:
    check(one)


@pytest.mark.slow
@pytest.mark.parametrize("one", LONGER, **named)
def test_longer_items(one: Item) -> None:
    check(one)


@pytest.mark.parametrize("one", BROKEN, **named)
def test_wrong_variants_break_the_assertions(one: Item) -> None:
    assert one.show is not None
    with pytest.raises(AssertionError):
        one.show(**one.wrong)


def test_formulas_and_mechanisms_have_a_wrong_variant() -> None:
    kinds = ("formula", "mechanism")
    assert not [one.id for one in ITEMS.values() if one.show is not None and one.kind in kinds and not one.wrong]


@pytest.mark.parametrize("deck", [deck for deck in DECKS if deck not in UNFINISHED])
def test_no_row_of_the_inventory_is_lost(deck: str) -> None:
    inventory = (Path(__file__).parent / "ids.txt").read_text().split()
    here = {name for one in ITEMS.values() for name in (one.id, *one.also)}
    assert not [name for name in inventory if name.startswith(deck) and name not in here]


def test_items_are_in_page_order() -> None:
    """As in the inventory, deck by deck."""
    inventory = (Path(__file__).parent / "ids.txt").read_text().split()
    for deck, items in by_deck():
        places = [inventory.index(one.id) for one in items if one.id in inventory]
        assert places == sorted(places), f"deck {deck}"


def test_a_page_shows_every_item() -> None:
    for deck, items in by_deck():
        text = page(deck, [Shown(one, one.status) for one in items])
        assert all(f'id="{one.id}"' in text for one in items)
