"""make quick: golden outputs, and the tests of what changed.

    python -m tests.quick goldens BASE    # make the goldens from a commit, in .goldens/
    python -m tests.quick [SINCE]         # compare with them; test what changed since a commit (default: upstream)

The goldens are made by the code of the base commit, in a worktree of it on this machine, so that equal means bit-equal.
A change that moves numbers on purpose says so in its commit message, and makes new goldens afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / ".goldens"
ALWAYS = ("tests/test_architecture.py",)
SLOW = (
    "tests/experiments",
    "tests/explore",
)  # folders that alone take longer than this may: not by package, only by name
HALVES = (("recipes", "ids"), ("shipped", "training"))  # about equally long, side by side


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def goldens(what: str, tree: Path) -> list[subprocess.Popen[bytes]]:
    """Processes that write or compare the goldens with the code of a checkout."""
    ways = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.goldens", what, str(GOLDENS)]
    return [subprocess.Popen([*command, *half], cwd=tree, env=ways) for half in HALVES]


def wait(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Whether one of them failed, after all have ended."""
    return any(code != 0 for code in [process.wait() for process in processes])


def make(base: str) -> int:
    commit = git("rev-parse", base)
    shutil.rmtree(GOLDENS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as home:
        tree = Path(home) / "base"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            if not (tree / "tests/goldens").exists():  # a commit from before there were any
                shutil.copytree(ROOT / "tests/goldens", tree / "tests/goldens")
            failed = wait(goldens("write", tree))
        finally:
            git("worktree", "remove", "--force", str(tree))
    if not failed:
        (GOLDENS / "base").write_text(commit)
    return int(failed)


def changed(since: str) -> list[str]:
    """Files that differ from a commit, new ones among them."""
    return [*git("diff", "--name-only", since).splitlines(), *git("ls-files", "-o", "--exclude-standard").splitlines()]


def tests_of(files: list[str]) -> list[str]:
    """Test files for changed files: a test itself, or those named as the module or its package."""
    found = set(ALWAYS)
    for file in map(Path, files):
        if file.parts[0] == "tests" and file.name.startswith("test_") and (ROOT / file).exists():
            found.add(str(file))
        elif file.parts[:2] == ("src", "anyformer") and file.suffix == ".py":
            found |= _of_module(Path("tests", *file.parts[2:-1]), file.stem)
    return sorted(found)


def _of_module(folder: Path, stem: str) -> set[str]:
    named = {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(f"test_*{stem}*.py")}
    if named or folder == Path("tests") or str(folder).startswith(SLOW):
        return named
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("test_*.py")}


def upstream() -> str:
    asked = subprocess.run(["git", "rev-parse", "@{upstream}"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else "HEAD"


def quick(since: str) -> int:
    if not (GOLDENS / "base").exists():
        print("No goldens yet: making them from HEAD.")
        if make("HEAD"):
            return 1
    print(f"Goldens of {(GOLDENS / 'base').read_text()[:10]}.", flush=True)
    failed = wait(goldens("compare", ROOT))
    files = tests_of(changed(since))
    print(f"Tests of what changed since {since[:10]}: {' '.join(files)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "--dist", "worksteal", *files]
    return subprocess.run(command, cwd=ROOT).returncode or int(failed)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["goldens"]:
        sys.exit(make(*words[1:] or ["HEAD"]))
    sys.exit(quick(*words or [upstream()]))
