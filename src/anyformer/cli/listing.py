"""Tables on the command line: recipes, tasks and named models."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from anyformer import pretrained
from anyformer.errors import InputError, nearest


def show_recipes(rows: Sequence[tuple[str, str, int, str]], family: str | None, size: str | None) -> None:
    """Print recipes (name, family, parameters, description): a line for each family, or for each recipe if filtered."""
    low, high = parse_size_range(size or "0-")
    rows = sorted((row for row in rows if low <= row[2] <= high), key=lambda row: (row[1], row[2], row[0]))
    if not rows:
        raise InputError(f"No recipe has {size} parameters; `anyformer recipes` lists all of them.")
    table = Table(box=None, pad_edge=False)
    if family is None and size is None:
        for title in ("family", "description", "recipes (parameters)"):
            table.add_column(title, overflow="fold", no_wrap=title == "family")
        for name, group in groupby(rows, key=lambda row: row[1]):
            sizes = list(group)
            listed = ", ".join(f"{recipe} {format_count(count)}" for recipe, _, count, _ in sizes)
            table.add_row(name, sizes[0][3], listed)
    else:
        for title in ("recipe", "family", "parameters", "description"):
            table.add_column(title, justify="right" if title == "parameters" else "left", no_wrap=True)
        for recipe, name, count, description in rows:
            table.add_row(recipe, name, f"{count:,}", description)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


SIZE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def parse_size_range(text: str) -> tuple[float, float]:
    """Smallest and largest number of parameters.  "10M" -> (0, 1e7), "10M-" -> (1e7, inf), "1M-1B" -> (1e6, 1e9)"""
    number = r"(\d+(?:\.\d+)?)([KMB]?)"
    found = re.fullmatch(rf"(?:{number}(-))?(?:{number})?", text.strip().upper())
    if found is None or not any(found.groups()):
        raise InputError(f"--size is {text!r}; it must be a number of parameters (10M) or a range (10M-100M, 1B-).")
    low, low_unit, _, high, high_unit = found.groups()
    smallest = float(low) * SIZE_UNITS[low_unit] if low else 0.0
    return smallest, float(high) * SIZE_UNITS[high_unit] if high else math.inf


def format_count(count: int) -> str:
    """A number with three digits at most and a unit.  124439808 -> "124M" """
    unit, scale = max(
        ((unit, scale) for unit, scale in SIZE_UNITS.items() if count >= 0.9995 * scale), key=lambda one: one[1]
    )
    number = count / scale
    return f"{number:.0f}{unit}" if number >= 10 or not unit else f"{number:.1f}{unit}"


def show_tasks() -> None:
    """Print the tasks: name, description, columns of the data."""
    from anyformer.tasks import find, names

    table = Table(box=None, pad_edge=False)
    for title in ("task", "description", "data columns"):
        table.add_column(title, no_wrap=title == "task")
    for name in names():
        kind = find(name)
        table.add_row(name, kind.about, ", ".join(column.name for column in kind.columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def show_models() -> None:
    """Print the named models as a table, and how to install those that are missing."""
    listed = pretrained.models()
    defaults = {pretrained.default(task).name for task in {model.task for model in listed}}
    table = Table(box=None, pad_edge=False)
    for title in ("name", "task", "parameters", "size", "score", "license", "installed"):
        table.add_column(
            title,
            justify="right" if title in ("parameters", "size") else "left",
            no_wrap=title not in ("score", "license"),
            min_width={"license": 20}.get(title),
        )
    for model in listed:
        size = f"{model.bytes / 1e6:.1f} MB" if model.bytes else ""
        task = f"{model.task} *" if model.name in defaults else model.task
        installed = "yes" if model.problem is None else "no"
        table.add_row(model.name, task, f"{model.parameters:,}", size, model.score, model.license, installed)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
    console.print(table)
    lines = [
        "\n* default model of its task; `anyformer models NAME` shows the model card",
        "Scores are on held-out data unless marked as used for checkpoint selection.",
        "Licenses name the terms of the weights, their data and their base. LicenseRef: own or no terms, see the card.",
        *_problems(listed),
    ]
    if pretrained.models_folder() is None:
        lines.append(f"The models of anyformer are not installed; install them with: {pretrained.GET}")
    for line in lines:
        console.print(line, soft_wrap=True)


def _problems(listed: Sequence[pretrained.PretrainedModel]) -> list[str]:
    """Why models cannot be used; those that one command installs are in one line."""
    missing: dict[str, list[str]] = {}
    for model in listed:
        if model.path is None:
            missing.setdefault(model.get, []).append(model.name)
    lines = [f"Not installed: {', '.join(names)}; install with: {get}" for get, names in missing.items()]
    return [*lines, *(model.problem for model in listed if model.path is not None and model.problem is not None)]


def show_card(name: str) -> None:
    """Print the card of a named model."""
    found = pretrained.find(name)
    if found is None:
        names = [model.name for model in pretrained.models()]
        raise InputError(f'Unknown model "{name}".{nearest(name, names)} Available: {", ".join(names)}.')
    print(found.card)
