"""Loading goes through the meta device and memory mapping: the peak is the weights and little more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af

SCRIPT = """
import re, sys
import anyformer as af
af.recipes()
af.load(sys.argv[2])  # a small one, so that everything that loading imports is there

def status(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # start counting the peak anew
model = af.load(sys.argv[1])
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(weights, status("VmHWM") - before)
"""


def peak(folder: Path, small: Path) -> tuple[int, int]:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(small)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    weights, used = (int(number) for number in result.stdout.split())
    return weights, used


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("recipe", ["gpt2-124m", "bert-base"])
def test_peak(recipe: str, tmp_path: Path) -> None:
    """GPT-2 needs its matrices transposed, BERT query, key and value put together: neither costs a second copy."""
    af.build(recipe.split("-")[0] + "-tiny").save(tmp_path / "small", format="hf")
    model = af.build(recipe, n_layers=6).eval()
    for dtype in (torch.float32, torch.bfloat16):
        model.to(dtype).save(tmp_path / "model", format="hf")
        weights, used = peak(tmp_path / "model", tmp_path / "small")
        assert weights > 60e6 * dtype.itemsize
        assert used <= 1.2 * weights, f"{used / weights:.2f} times the weights in {dtype}"
