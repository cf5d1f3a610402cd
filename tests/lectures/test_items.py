"""Every item of the lectures that is fast: it shows something, and its assertions hold and can fail."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lectures.__main__ import main
from lectures.item import DECKS, Item, in_order
from lectures.page import article, page
from lectures.run import (
    ROOT,
    NeedsError,
    Shown,
    by_deck,
    choose,
    claims,
    counts,
    load_decks,
    run,
    with_quick_run,
)

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


@pytest.mark.parametrize("one", [one for one in ITEMS.values() if one.show is not None], **named)
def test_every_item_has_an_assertion_of_its_own(one: Item) -> None:
    """A page that is read, or a call that is refused, does not count; neither does what is true of anything."""
    checks = [node.test for node in ast.walk(ast.parse(one.code)) if isinstance(node, ast.Assert)]
    own = [check for check in checks if _computed(check)]
    assert own, "the item has no assertion"


def _computed(check: ast.expr) -> bool:
    """Whether an assertion compares something: it is no call of a helper that asserts by itself, and no constant."""
    helpers = {"documented", "refusal", "verdict"}
    if isinstance(check, ast.Call) and isinstance(check.func, ast.Name) and check.func.id in helpers:
        return False
    return bool({node.id for node in ast.walk(check) if isinstance(node, ast.Name)} - set(dir(builtins)) - helpers)


def test_items_that_read_documents_name_the_command_that_made_them() -> None:
    for one in ITEMS.values():
        reads = re.search(r"\b(documented|verdict)\(", one.code + one.helpers)
        assert bool(reads) == bool(one.documented or one.beside), one.id
        assert not (one.documented and one.beside), one.id


@pytest.mark.parametrize("command", sorted({one.documented or one.beside for one in ITEMS.values()} - {""}))
def test_the_commands_of_documented_runs_exist(command: str) -> None:
    runs = {line.split("|")[0].strip() for line in (ROOT / "benchmarks" / "results.txt").read_text().splitlines()}
    for one in command.split("; "):
        program, script, *names = one.split()
        if program == "python":
            assert (ROOT / script).exists(), one
        if script == "benchmarks/results.py":
            assert names and set(names) <= runs, one


def test_names_inside_models_are_in_one_place() -> None:
    """Paths of parameters and modules change; items ask lectures/inside.py for what they need."""
    paths = re.compile(
        r"sublayers[.\"'][^,]|\.(part|inputs|stack)\b[.\"']|get_parameter|named_parameters|named_modules"
    )
    for deck in sorted((ROOT / "lectures").glob("deck_*.py")):
        assert not [line for line in deck.read_text(encoding="utf-8").splitlines() if paths.search(line)]


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
    said = r"Of (\d+) items (\d+) are shown, (\d+) are shown in part, (\d+) are missing, and for (\d+) the data"
    assert [int(n) for n in _only(said, readme)] == [len(ITEMS), *total]
    said = r"(\d+) items: (\d+) shown, (\d+) shown in part, (\d+) missing, (\d+) unavailable. By deck"
    assert [int(n) for n in _only(said, plan)] == [len(ITEMS), *total]
    held = claims(list(ITEMS.values()))
    for text in (readme, plan):
        said = r"Of (\d+) claims that are shown,? (\d+) hold, (\d+) hold in part, and (\d+) do not"
        assert [int(n) for n in _only(said, text)] == [sum(held.values()), *held.values()]
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


def test_a_page_says_apart_whether_an_item_is_shown_and_whether_its_claim_holds() -> None:
    badges = {
        "003-15-02": "✓ shown</span> · <span class=h-partly>the claim holds in part</span>",
        "004-22-01": "✓ shown</span> · <span class=h-no>the claim does not hold</span>",
        "000-1-10": "◐ shown in part</span> · <span class=h-yes>the claim holds</span>",
    }
    for name, badge in badges.items():
        assert badge in article(name, Shown(ITEMS[name], ITEMS[name].status))
    text = article("004-26-05", Shown(ITEMS["004-26-05"], "works"))
    assert "documented run, not run here" in text and "<code>python experiments/12_limits.py</code>" in text


def test_a_page_shows_the_helpers_that_an_item_uses() -> None:
    text = ITEMS["000-1-15a"].helpers
    assert "def _shortest" in text and "def _beside" in text and "CELLS = " in text and "def planning" not in text
    assert "def projections" in ITEMS["001-4-06"].helpers
    assert "what it uses" in article("000-1-15a", Shown(ITEMS["000-1-15a"], "partly"))


def test_the_listing_says_what_was_not_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[1]: line for line in said.splitlines() if line.startswith("  ")}
    assert lines["003-1-06"].endswith("(documented run, not run here)")
    assert "(the claim holds in part; documented run, not run here)" in lines["003-15-02"]


def test_a_reader_that_stops_early_ends_it_quietly() -> None:
    """`python -m lectures | head -1`: its pipe is closed after one line."""
    with subprocess.Popen(
        [sys.executable, "-m", "lectures"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


def test_an_empty_name_of_a_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--page", "--pictures"):
        with pytest.raises(SystemExit) as ended:
            main(["003-12-01", option, ""])
        assert ended.value.code == 2 and "empty" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "verdict"), [(0, "works"), (1, "failed"), (2, "works")])
def test_a_documented_item_fails_if_the_short_run_of_its_experiment_does(
    code: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lectures.run._quick", lambda script: (code, 3.0, "the last line"))
    found = with_quick_run(Shown(ITEMS["003-1-06"], "works"))
    assert found.verdict == verdict
    assert "experiments/04_bottleneck.py --quick" in f"{found.error}{''.join(map(str, found.things))}"


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
