"""Every Python example in the README and the docs runs as it stands, top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S))


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(examples(page), str(page), "exec"), {"__name__": "__example__"})


def test_links() -> None:
    """What the pages point to is there."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_the_commands_exist() -> None:
    """Commands that the README shows are commands of the program."""
    from typer.main import get_command

    from anyformer.cli.main import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    shown = set(re.findall(r"^    anyformer (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.M))
    assert shown and shown <= known
