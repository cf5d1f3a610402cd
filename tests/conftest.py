"""Tests run on tiny models: one thread each, the same seed for all, no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _amx_is_a_promise_only() -> bool:
    """Some virtual machines list AMX among the processor's features, and end whatever uses it (SIGILL)."""
    listed = Path("/proc/cpuinfo")
    if not listed.exists() or "amx_bf16" not in listed.read_text() or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return False
    probe = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
    return subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode < 0


if _amx_is_a_promise_only():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"  # read by PyTorch when it loads; workers inherit it

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)
