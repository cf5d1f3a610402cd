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


def test_the_map_of_the_code_is_true() -> None:
    """Every file, class, method and function that docs/architecture.md names exists."""
    source = ROOT / "src" / "anyformer"
    code = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    names = re.findall(r"`([^`\s]+)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    for name in {name for name in names if "NAME" not in name}:
        if name.endswith(".py"):
            homes = [path for path in code if path == name or path.endswith(f"/{name}")]
            assert homes or (ROOT / name).exists(), f"there is no file {name}"
        elif name.endswith("/"):
            assert (source / name).is_dir() or any(f"/{name}" in path for path in code), f"there is no package {name}"
        elif re.fullmatch(r"[A-Z]\w+(\.\w+)?", name):
            cls, _, method = name.partition(".")
            homes = [text for text in code.values() if re.search(rf"^class {cls}\b", text, flags=re.M)]
            assert homes, f"there is no class {cls}"
            assert not method or any(f"def {method}(" in text for text in homes), f"{cls} has no {method}"
        elif re.fullmatch(r"\w+\.(?!json$)\w+", name) and f"{name.partition('.')[0]}.py" in code:
            module, _, function = name.partition(".")
            assert re.search(rf"def {function}\(|self\.{function} = ", code[f"{module}.py"]), (
                f"{module}.py has no {function}"
            )
        elif re.fullmatch(r"[a-z_]{5,}", name):
            assert any(re.search(rf"^(?:    )?def {name}\(", text, flags=re.M) for text in code.values()), name


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index("![") < text.index("pip install") < text.index("```python") < text.index("| speedup |")
    assert len(text.split()) < 1000
