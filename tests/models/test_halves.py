"""models/halves.py: a fixed half of the rows, and intervals."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(MODELS))
    spec = importlib.util.spec_from_file_location("halves", MODELS / "halves.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "halves", module)
    spec.loader.exec_module(module)
    return module


def test_halves_are_fixed(halves: Any) -> None:
    """As many rows as the cards say."""
    counts = {name: sum(halves.in_half(name, i) for i in range(n)) for name, n in (("cells", 87), ("digits", 300))}
    assert counts == {"cells": 46, "digits": 142}
    chosen = halves.choosing_rows("cells", 87)
    assert len(chosen) == 41 and not any(halves.in_half("cells", i) for i in chosen)


def test_intervals(halves: Any) -> None:
    low, high = halves.wilson(0.5, 100)
    assert low == pytest.approx(0.4038, abs=1e-4) and high == pytest.approx(0.5962, abs=1e-4)
    values = np.random.default_rng(0).normal(size=2_000)
    error = halves.jackknife(lambda some: float(values[some].mean()), len(values))
    assert error == pytest.approx(2_000**-0.5, rel=0.5)
