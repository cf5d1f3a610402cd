"""Paths in backticks in the documents exist, so that a moved file is not named by its old place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anyformer"
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
TOP = {"src", "tests", "lectures", "docs", "benchmarks", "models", "experiments", "anyformer"}
# The plan also records finished work: it names a script and a test that are gone, and a decision by its number.
PACKAGES = {path.name for path in PACKAGE.iterdir() if path.is_dir()}


def code(text: str) -> list[tuple[int, str]]:
    """Return the words in backticks, each with its line number; fenced blocks are left out."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.S | re.M)
    return [
        (number, word.strip(".,:;()\"'"))
        for number, line in enumerate(text.split("\n"), start=1)
        for quoted in re.findall(r"`([^`]+)`", line)
        for word in quoted.split()
    ]


def is_path(word: str) -> bool:
    if "=" in word or "…" in word or word.startswith(("-", "/", "http")):
        return False
    return word.endswith(".py") or ("/" in word and word.split("/")[0] in TOP | PACKAGES)


def exists(word: str, beside: Path | None = None) -> bool:
    """Whether a path or glob exists. Words in capitals, as in `recipes/NAME.py`, stand for any name. A file name alone
    may belong to the folder that stands first in its line, as in the table of packages."""
    pattern = re.sub(r"(?<![A-Za-z.])[A-Z_]{3,}(?![A-Za-z])", "*", word.split("::")[0]).rstrip("/")
    places = [ROOT, ROOT / "src", PACKAGE, *([beside] if beside else [])]
    return any(next(place.glob(pattern), None) is not None for place in places)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_exist(page: Path) -> None:
    name = page.relative_to(ROOT).as_posix()
    missing: list[str] = []
    folders: dict[int, Path] = {}
    for line, word in code(page.read_text(encoding="utf-8")):
        if word.endswith("/") and (PACKAGE / word).is_dir():
            folders.setdefault(line, PACKAGE / word)
        if is_path(word) and not exists(word, folders.get(line)):
            missing.append(f"{name}:{line}: {word}")
    assert not missing, "\n".join(missing)


def test_is_path() -> None:
    for word in ("core/block.py", "tests/fast", "docs/decisions/*.md", "recipes/NAME.py", "block.py"):
        assert is_path(word)
    for word in ("train.lr", "anyformer", "r/w", "--data=tests/x.py", "https://docs/x.py"):
        assert not is_path(word)


def test_exists() -> None:
    for word in ("core/block.py", "tests/fast/", "docs/decisions/*.md", "recipes/NAME.py", "README.md"):
        assert exists(word)
    for word in ("core/gpu.py", "block.py", "tests/decode", "NAME/gpu.py"):
        assert not exists(word)
    assert exists("block.py", PACKAGE / "core")
