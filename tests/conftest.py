"""Tests run on tiny models: one thread each, the same seed for all, no network."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)
