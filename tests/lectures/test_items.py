"""Every item of the lectures that is fast: it shows something, and its assertions hold and can fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from lectures.__main__ import main
from lectures.item import DECKS, Item, in_order
from lectures.page import page
from lectures.run import ROOT, NeedsError, Shown, by_deck, choose, counts, load_decks, run

ITEMS = load_decks()
FAST = [one for one in ITEMS.values() if one.show is not None and one.cost == "fast"]
LONGER = [one for one in ITEMS.values() if one.show is not None and one.cost in ("slow", "training")]
BROKEN = [one for one in ITEMS.values() if one.wrong]
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
    torch.manual_seed(0)  # as `run` does, so that nothing but the argument differs
    with pytest.raises((AssertionError, NeedsError)) as broken:
        one.show(**one.wrong)
    if broken.type is NeedsError:
        pytest.skip(str(broken.value))


def test_formulas_and_mechanisms_have_a_wrong_variant() -> None:
    kinds = ("formula", "mechanism")
    assert not [one.id for one in ITEMS.values() if one.show is not None and one.kind in kinds and not one.wrong]


@pytest.mark.parametrize("deck", DECKS)
def test_no_row_of_the_inventory_is_lost(deck: str) -> None:
    inventory = (Path(__file__).parent / "ids.txt").read_text().split()
    here = {name for one in ITEMS.values() for name in (one.id, *one.also)}
    assert not [name for name in inventory if name.startswith(deck) and name not in here]


def test_the_counts_in_the_documents_are_those_of_the_decks() -> None:
    statuses = ("works", "partly", "missing", "unavailable")
    here = {deck: [counts(items).get(status, 0) for status in statuses] for deck, items in by_deck()}
    total = [sum(column) for column in zip(*here.values(), strict=True)]
    readme, plan = (" ".join((ROOT / path).read_text("utf-8").split()) for path in ("README.md", "docs/plan.md"))
    said = r"Of (\d+) items (\d+) work, (\d+) hold partly, (\d+) are missing, and for (\d+) the data"
    assert [int(n) for n in _only(said, readme)] == [len(ITEMS), *total]
    said = r"(\d+) items: (\d+) work, (\d+) partly, (\d+) missing, (\d+) unavailable. By deck"
    assert [int(n) for n in _only(said, plan)] == [len(ITEMS), *total]
    by_row = re.findall(r"(\d{3}): (\d+), (\d+), (\d+), (\d+)[;.]", plan)
    assert {deck: [int(n) for n in numbers] for deck, *numbers in by_row} == here


def _only(pattern: str, text: str) -> tuple[str, ...]:
    (found,) = re.findall(pattern, text)
    return tuple(found)


def test_items_are_in_page_order() -> None:
    """As in the inventory, deck by deck."""
    inventory = (Path(__file__).parent / "ids.txt").read_text().split()
    for deck, items in by_deck():
        places = [inventory.index(one.id) for one in items if one.id in inventory]
        assert places == sorted(places), f"deck {deck}"


def test_a_page_shows_every_item() -> None:
    """Of its deck, and those of other decks that its slides say, too."""
    for deck in DECKS:
        here = choose(deck)
        text = page(deck, [Shown(one, one.status) for one in here])
        assert all(f'id="{one.name_in(deck)}"' in text for one in here)
        assert "<h2" in text and "http" not in re.sub(r"<pre.*?</pre>", "", text, flags=re.S), "nothing from elsewhere"


def test_a_page_shows_what_came_out() -> None:
    (one,) = choose("003-5-02")
    text = page("003", [run(one)])
    assert "<table>" in text and "<td class=n>" in text and "✓ shown" in text
    assert "<span class=k>return</span>" in text and "With <code>" in text


def test_items_are_found_in_the_order_of_the_slides() -> None:
    """By the ids of the deck that is asked for, which may be another than that of the item."""
    names = [one.name_in("001") for one in choose("001")]
    assert {one.deck for one in choose("001")} > {"001"}
    assert names == sorted(names, key=in_order)
    assert [one.id for one in choose("003-7-03")] == ["001-4-03"] and not choose("003-") and not choose("00")


def test_what_is_not_there_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    said = capsys.readouterr().err
    assert said == "There is no deck, section or item nonsense; python -m lectures lists them.\n"
    assert main(["003-5-2"]) == 2 and "003-5-02" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--page", "--pictures"])
def test_a_folder_that_cannot_be_made_is_said_in_a_sentence(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["003-12-01", option, str(tmp_path / "file")]) == 2
    said = capsys.readouterr()
    assert str(tmp_path / "file") in said.err
    assert bool(said.out) == (option == "--pictures"), "nothing runs where the page cannot be written"
