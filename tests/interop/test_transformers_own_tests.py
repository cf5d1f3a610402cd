"""transformers' own tests, handed our answers: see docs/decisions/0047-transformers-own-tests.md.

    pip install --target SITE transformers==5.15.1 parameterized datasets   # of the same version as the checkout
    ANYFORMER_TRANSFORMERS_REPO=CHECKOUT ANYFORMER_TRANSFORMERS_SITE=SITE make slow

SITE may be left out where the environment has these packages, transformers in the version of the checkout.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

REPO = os.environ.get("ANYFORMER_TRANSFORMERS_REPO")
CHILD = Path(__file__).parent / "child"
# How many calls at least are answered by us, and how many tests at least pass with them.
LEAST = {
    "gpt2": {"call": 350, "generate": 24, "passed": 55},
    "llama": {"call": 350, "generate": 24, "passed": 55},
    "bert": {"call": 550, "generate": 0, "passed": 45},
    "t5": {"call": 65, "generate": 16, "passed": 45},
    "vit": {"call": 150, "generate": 0, "passed": 35},
}


def environment(report: Path) -> dict[str, str]:
    paths = [os.environ.get("ANYFORMER_TRANSFORMERS_SITE"), str(CHILD), os.environ.get("PYTHONPATH")]
    ours = {name: value for name, value in os.environ.items() if name != "TRANSFORMERS_VERBOSITY"}  # they read its log
    return {
        **ours,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "ANYFORMER_OWN_TESTS": str(report),
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="module")
def checkout() -> Path:
    """A checkout whose tests can be run here: with what they import, and transformers in its version."""
    if REPO is None:
        pytest.skip("needs a checkout of transformers: set ANYFORMER_TRANSFORMERS_REPO")
    folder = Path(REPO).absolute()
    said = (folder / "src" / "transformers" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"', said, re.MULTILINE)
    assert found is not None, f"{folder} is no checkout of transformers"
    probe = "import datasets, httpx, parameterized, transformers; print(transformers.__version__)"
    ran = subprocess.run([sys.executable, "-c", probe], env=environment(Path()), capture_output=True, text=True)
    assert ran.returncode == 0, f"its tests cannot be imported: {ran.stderr[-300:]}"
    version = ran.stdout.split()[-1]
    assert version == found[1], f"the checkout is of {found[1]}, the package that is installed of {version}"
    return folder


def run(folder: Path, family: str, report: Path) -> dict[str, Any]:
    tests = f"tests/models/{family}/test_modeling_{family}.py"
    options = ["-p", "own_tests", "-p", "no:cacheprovider", "-q", "-W", "ignore", "-o", "log_cli=0", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, tests]
    ran = subprocess.run(command, cwd=folder, env=environment(report), capture_output=True, text=True)
    assert report.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    told: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return told


@pytest.mark.parametrize("family", LEAST)
def test_own_tests(family: str, checkout: Path, tmp_path: Path) -> None:
    told = run(checkout, family, tmp_path / "report.json")
    results = told["results"]
    failed = {name: one["why"][-400:] for name, one in results.items() if one["outcome"] == "failed"}
    answered = {name: one for name, one in results.items() if one["outcome"] == "passed" and one["calls"]}
    counts = {"passed": len(answered)}
    for kind in ("call", "generate"):
        counts[kind] = sum(n for one in answered.values() for name, n in one["calls"].items() if name.endswith(kind))
    print(summary(family, told, counts))
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    short = {name: counts[name] for name, least in LEAST[family].items() if counts[name] < least}
    assert not short, f"fewer than {LEAST[family]} were answered by us: {short}"


def summary(family: str, told: dict[str, Any], counts: dict[str, int]) -> str:
    """What was answered, and what was not, with the reasons; `-s` shows it."""
    results = told["results"].values()
    outcomes = Counter(one["outcome"] for one in results)
    reasons = Counter(
        one["why"].partition("departure: ")[2]
        for one in results
        if "departure: " in one["why"] and one["outcome"] == "skipped"
    )
    lines = [f"{family}: {dict(outcomes)}, of them with our answers {counts}"]
    lines += [f"  skipped {n}: {reason}" for reason, n in reasons.most_common()]
    lines += [f"  transformers' own {n} times: {name}" for name, n in told["kept"].items()]
    lines += [f"  left out of tests that go through all classes: {', '.join(told['left_out']) or 'none'}"]
    return "\n".join(lines)
