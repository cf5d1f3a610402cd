"""python -m lectures [DECK | SECTION | ITEM] [--page DIR] [--all]"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections import Counter
from pathlib import Path

import torch

from .elsewhere import elsewhere
from .item import DECKS, SECTIONS, Item
from .page import HOLDS, LACKS, SAID, write_page
from .run import Shown, by_deck, choose, counts, run, with_quick_run

SIGNS = {"works": "✓", "partly": "~", "missing": "–", "unavailable": "–", "failed": "✗", "skipped": "…"}


def overview() -> None:
    """The decks and their items, with counts by status."""
    for deck, items in by_deck():
        said = ", ".join(f"{n} {SAID[status][1]}" for status, n in counts(items).items())
        print(f"\n{deck}  {DECKS[deck]}: {len(items)} items ({said})")
        for one in items:
            told = [HOLDS[one.holds]] if one.holds != "yes" else []
            told += ["documented run, not run here"] if one.documented else []
            note = f" ({'; '.join(told)})" if told else ""
            print(f"  {SIGNS[one.status]} {one.id:<12} {one.kind:<10} {one.cost:<9} {one.title}{note}")


def tell(shown: Shown, pictures: Path) -> None:
    """Print an item; save its figures."""
    one = shown.item
    facts = [one.kind, SAID[shown.verdict][0], f"{shown.seconds:.1f} s"]
    facts[2:2] = [HOLDS[one.holds]] if one.kind == "claim" and shown.verdict in ("works", "partly") else []
    print(f"\n{SIGNS[shown.verdict]} {one.id}  {one.title}  [{', '.join(facts)}]")
    if one.about:
        print(one.about)
    if one.note:
        print(f"  {LACKS[one.status]}: {one.note}")
    if one.documented or one.beside:
        how = "documented run, not run here" if one.documented else "documented, in part"
        print(f"  {how}: {one.documented or one.beside}")
    if shown.error:
        print(f"  {shown.verdict}: {shown.error}")
    for i, thing in enumerate(shown.things):
        if hasattr(thing, "savefig"):
            pictures.mkdir(parents=True, exist_ok=True)
            path = pictures / f"{one.id}{f'-{i}' if i else ''}.png"
            thing.savefig(path, bbox_inches="tight", dpi=120)
            print(f"  image: {path}")
        else:
            print("\n".join(f"  {line}" for line in str(thing).splitlines()))
    for place in elsewhere(one):
        print(f"  see {place}")


def wanted_costs(all_of_them: bool, items: list[Item]) -> set[str]:
    """Fast and slow items; trainings too if asked for, or if one item is named; those for a GPU where there is one."""
    more = {"training", *(["gpu"] if torch.cuda.is_available() else [])}
    return {"fast", "slow"} | (more if all_of_them or len(items) == 1 else set())


def read(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lectures", description="Five lectures on transformers, executed")
    parser.add_argument("what", nargs="?", help="a deck (003), a section (003-12) or an item (003-12-01)")
    parser.add_argument("--page", type=_folder, metavar="DIR", help="write an HTML page for each deck into DIR")
    parser.add_argument("--all", action="store_true", help="items that train a model and short experiments, too")
    parser.add_argument(
        "--pictures", type=_folder, metavar="DIR", default=Path("out/lectures"), help="folder for figures"
    )
    return parser.parse_args(arguments)


def _folder(name: str) -> Path:
    if not name.strip():
        raise argparse.ArgumentTypeError("the name of the folder is empty")
    return Path(name)


def main(arguments: list[str] | None = None) -> int:
    given = read(arguments)
    if given.what is None and given.page is None and not given.all:
        overview()
        return 0
    items = choose(given.what)
    if not items:
        names = [*DECKS, *SECTIONS, *(name for one in choose(None) for name in (one.id, *one.also))]
        near = " or ".join(difflib.get_close_matches(given.what, names, n=2, cutoff=0.8))
        hint = f" Did you mean {near}?" if near else ""
        print(f"There is no deck, section or item {given.what}; python -m lectures lists them.{hint}", file=sys.stderr)
        return 2
    try:
        return show(items, given)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"{error.filename} cannot be written ({error.strerror}); choose another folder.", file=sys.stderr)
        return 2


def show(items: list[Item], given: argparse.Namespace) -> int:
    if given.page is not None:
        given.page.mkdir(parents=True, exist_ok=True)  # before anything runs
    costs = wanted_costs(given.all, items)
    found = []
    for one in items:
        skipped = Shown(
            one, "skipped", error="needs a GPU" if one.cost == "gpu" else f"`python -m lectures {one.id}` runs it"
        )
        shown = run(one) if one.show is None or one.cost in costs else skipped
        shown = with_quick_run(shown) if given.all else shown
        tell(shown, given.pictures)
        found.append(shown)
    if len(found) > 1:
        count = Counter(shown.verdict for shown in found)
        print(f"\n{len(found)} items: {', '.join(f'{count[name]} {SAID[name][1]}' for name in SIGNS if count[name])}")
    if given.page is not None:
        for path in write_page(found, given.page, given.what or ""):
            print(f"page: {path}")
    return 1 if any(shown.verdict == "failed" for shown in found) else 0


def command() -> int:
    """`main`; a reader that has seen enough (`| head`) ends it without a word."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to write when Python ends
        return 1
    return code


if __name__ == "__main__":
    sys.exit(command())
