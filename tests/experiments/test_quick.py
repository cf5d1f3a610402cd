"""Every experiment runs, its exact claims hold, and its page says everything that a page must say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "experiments").glob("[0-9][0-9]_*.py"))
# Those whose --quick takes more than a few seconds: they read real data or load real weights.
SLOW = {"09_text", "10_pictures", "11_decoding", "12_limits", "14_heads", "15_ancestors"}


def load(script: Path) -> ModuleType:
    """As `python experiments/NAME.py` would: its folder is where it looks for its parts."""
    folder = str(script.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(f"experiment_{script.stem}", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def marked(script: Path) -> object:
    return pytest.param(script, id=script.stem, marks=[pytest.mark.slow] if script.stem in SLOW else [])


@pytest.mark.parametrize("script", [marked(script) for script in SCRIPTS])
def test_a_quick_run_is_exact_where_it_must_be_and_writes_a_whole_page(script: Path, tmp_path: Path) -> None:
    module = load(script)
    frame = sys.modules["frame"]
    options = frame.read_options(module.CLAIM, ["--quick", "--out", str(tmp_path)])
    try:
        found = frame.publish(module.CLAIM, module.run, options)
    except frame.AbsentError as error:
        pytest.skip(str(error))
    assert all(found.exact.values()), found.exact
    page = (tmp_path / f"{module.CLAIM.stem}.md").read_text(encoding="utf-8")
    check_page(page, tmp_path, module.CLAIM)
    assert f"]({module.CLAIM.stem}.md)" in (tmp_path / "README.md").read_text(encoding="utf-8"), "the index has it"


def check_page(page: str, folder: Path, claim: object) -> None:
    for part in ("**The claim.**", "**What was done.**", "**Verdict: ", "It took ", "| --- |", claim.script):  # type: ignore[attr-defined]
        assert part in page, f"the page lacks {part}"
    assert claim.script == f"experiments/{Path(claim.script).name}" and (ROOT / claim.script).exists()  # type: ignore[attr-defined]
    for picture in re.findall(r"\]\(([^)]+\.svg)\)", page):
        assert 0 < (folder / picture).stat().st_size < 100_000, f"{picture} is missing or too large"
    assert "nan" not in page.lower().split() and "inf" not in page.lower().split()


def test_the_published_pages_are_those_of_the_scripts() -> None:
    """A page without its script, or a whole run that nobody published, is a claim that cannot be checked."""
    pages = {path.stem for path in (ROOT / "docs" / "experiments").glob("[0-9][0-9]-*.md")}
    assert pages == {script.stem.replace("_", "-") for script in SCRIPTS}
    index = (ROOT / "docs" / "experiments" / "README.md").read_text(encoding="utf-8")
    for stem in pages:
        page = (ROOT / "docs" / "experiments" / f"{stem}.md").read_text(encoding="utf-8")
        assert f"]({stem}.md)" in index and "--quick" not in page
        assert all((ROOT / "docs" / "experiments" / name).exists() for name in re.findall(r"\]\(([^)]+\.svg)\)", page))
