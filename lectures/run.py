"""Running items: what one shows, whether its assertions hold, how long it took."""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from .item import DECKS, ITEMS, Holds, Item, Status, in_order

ROOT = Path(__file__).parents[1]


class NeedsError(Exception):
    """Something that an item needs is not on this machine: data, a model or a GPU. The message says what."""


@dataclass(frozen=True)
class Shown:
    """The outcome of an item. `verdict`: its status, "failed", or "skipped" if something it needs is not here."""

    item: Item
    verdict: str
    seconds: float = 0.0
    things: Sequence[Any] = ()  # texts, tables, figures
    error: str = ""


def load_decks() -> dict[str, Item]:
    """All items, in page order."""
    for deck in DECKS:
        importlib.import_module(f"lectures.deck_{deck}")
    return ITEMS


def choose(wanted: str | None) -> list[Item]:
    """The items of a deck ("003"), a section ("003-12") or one item ("003-12-01"), in the order of the slides.

    What the slides of several decks say is one item, in the first of them; it is found in all.
    """
    items = list(load_decks().values())
    if wanted is None:
        return items
    found = [one for one in items if one.name_in(wanted)]
    return sorted(found, key=lambda one: in_order(one.name_in(wanted)))


def run(one: Item) -> Shown:
    """Show an item; its assertions decide."""
    if one.show is None:
        return Shown(one, one.status)
    torch.manual_seed(0)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = one.show()
    except NeedsError as error:
        return Shown(one, "skipped", time.perf_counter() - started, error=str(error))
    except AssertionError as error:
        return Shown(one, "failed", time.perf_counter() - started, error=str(error) or "an assertion does not hold")
    except Exception as error:  # one item that ends in an error does not end the deck
        return Shown(one, "failed", time.perf_counter() - started, error=f"{type(error).__name__}: {error}")
    things = list(found) if isinstance(found, (list, tuple)) else [] if found is None else [found]
    return Shown(one, one.status, time.perf_counter() - started, things)


def with_quick_run(shown: Shown) -> Shown:
    """The same, after short runs of the experiments that made its documented numbers; none may fail."""
    for script in re.findall(r"python (experiments/\w+\.py)", shown.item.documented or shown.item.beside):
        if shown.verdict not in ("works", "partly"):
            break
        code, seconds, said = _quick(script)
        told = f"{script} --quick ran in {seconds:.0f} s; the numbers above are of its whole run"
        if code == 2:  # data or weights that are not here
            told = f"{script} --quick was not run: {said}"
        elif code:
            return replace(shown, verdict="failed", error=f"{script} --quick ends with {code}: {said}")
        shown = replace(shown, things=[*shown.things, told])
    return shown


@functools.cache
def _quick(script: str) -> tuple[int, float, str]:
    """Exit code, seconds and last line of an experiment in its shortest form."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [sys.executable, script, "--quick", "--out", out], cwd=ROOT, capture_output=True, text=True, check=False
        )
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return done.returncode, time.perf_counter() - started, lines[-1] if lines else ""


def data(*path: str) -> Path:
    """A file of the data sets (ANYFORMER_DATA)."""
    home = os.environ.get("ANYFORMER_DATA")
    found = Path(home or "/nowhere", *path)
    if not found.exists():
        raise NeedsError(f"needs the data {'/'.join(path)}; set ANYFORMER_DATA to the folder that holds it")
    return found


def counts(items: Sequence[Item]) -> dict[str, int]:
    """How many items have each status."""
    statuses = [one.status for one in items]
    return {status: statuses.count(status) for status in get_args(Status) if status in statuses}


def claims(items: Sequence[Item]) -> dict[str, int]:
    """How many of the claims that are shown hold, hold in part, or do not."""
    held = [one.holds for one in items if one.kind == "claim" and one.show is not None]
    return {holds: held.count(holds) for holds in get_args(Holds)}


def by_deck() -> Iterator[tuple[str, list[Item]]]:
    for deck in DECKS:
        yield deck, [one for one in load_decks().values() if one.deck == deck]
