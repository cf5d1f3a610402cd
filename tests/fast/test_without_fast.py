"""Everything works without anyformer.fast, slower, with the same numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anyformer.core import rewrites
from tests.fast.numbers import RECIPES, numbers

ROOT = Path(__file__).parents[2]
NUMERIC = ("tests/test_contracts.py", "tests/core/test_block.py", "tests/core/test_attention.py")


def test_numbers_are_the_same(tmp_path: Path) -> None:
    """Outputs, losses, gradients and generated ids of fifteen families."""
    assert rewrites.RULES, "anyformer.fast is not installed here"
    script = [sys.executable, "-m", "tests.fast.without_fast", str(tmp_path / "plain.safetensors")]
    subprocess.run(script, cwd=ROOT, check=True)
    plain, fast = load_file(tmp_path / "plain.safetensors"), numbers()
    assert plain.keys() == fast.keys() and len(plain) > 3 * len(RECIPES)
    for name, value in plain.items():
        if "/ids/" in name:
            assert torch.equal(value, fast[name]), name
        else:
            largest = float(value.double().nan_to_num().abs().max()) if value.numel() else 0.0
            torch.testing.assert_close(fast[name], value, atol=1e-5 * max(largest, 1e-3), rtol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("file", NUMERIC)
def test_the_numeric_suite_passes(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.fast.without_fast", file]
    assert subprocess.run(command, cwd=ROOT).returncode == 0
