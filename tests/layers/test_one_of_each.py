"""There is one convolutional network and one sinusoid: every other place uses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import anyformer

ROOT = Path(anyformer.__file__).parent
PACKAGES = ("core", "layers", "inputs", "heads", "recipes")


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        (r"\.sin\(\)", {"core/positions.py"}),  # rotary tables among them
        (r"nn\.Conv(Transpose)?2d\(|\(nn\.Conv(Transpose)?2d\):", {"layers/resnet.py", "heads/convolutions.py"}),
        (r"nn\.(BatchNorm2d|GroupNorm)\(", {"layers/resnet.py", "heads/convolutions.py", "heads/segment.py"}),
    ],
    ids=["sinusoid", "convolution", "norm"],
)
def test_it_is_written_once(pattern: str, files: set[str]) -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }
    assert found == files


def test_no_head_reads_what_another_part_noted() -> None:
    """Heads read tokens and the batch: fields that an input adds to the output are not theirs."""
    for path in (ROOT / "heads").rglob("*.py"):
        assert not re.search(r"run\.(outputs|extras)", path.read_text(encoding="utf-8")), path.name
