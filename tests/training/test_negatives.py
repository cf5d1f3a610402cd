"""In-batch negatives come from all processes: two and three learn what one does, to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import anyformer as af
from anyformer.training.distributed import Devices
from anyformer.training.step import OutOfMemoryError, out_of_memory
from tests.training.pairs import STEPS
from tests.training.toy import settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.pairs", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("name", ["plain", "negatives", "match", "negatives-2"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_learn_what_one_does(name: str, ranks: int, folder: Path, runs: dict[str, Any]) -> None:
    """Losses and weights; batches are of four rows, and of one at the end of an epoch. The last adds two batches up."""
    one = runs[f"{name}-1.0"]
    assert len(one) == STEPS and one[0] > 0.1
    weights = load_file(folder / f"{name}-1.0.st")
    for rank in range(ranks):
        assert runs[f"{name}-{ranks}.{rank}"] == pytest.approx(one, rel=1e-9)
        for key, value in load_file(folder / f"{name}-{ranks}.{rank}.st").items():
            torch.testing.assert_close(value, weights[key], rtol=1e-6, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", ["plain", "negatives"])
def test_sharded_processes_too(name: str, runs: dict[str, Any]) -> None:
    assert runs[f"{name}-fsdp-2.0"] == pytest.approx(runs[f"{name}-1.0"], rel=1e-9)


def test_a_single_number_cannot_be_sharded() -> None:
    with pytest.raises(af.ConfigError, match=r"match\.scale .*train\.parallel=ddp"):
        Devices(torch.device("cpu"), 0, 2, "fsdp").to_device(af.build("clip-tiny"))


def hint(contrastive: bool = False, **changes: object) -> str:
    said = out_of_memory(torch.OutOfMemoryError("no memory"), [], settings(batch_size=32, **changes), contrastive)
    assert isinstance(said, OutOfMemoryError)
    return str(said)


def test_the_hint_for_want_of_memory_is_true() -> None:
    """Accumulating brings no negatives back; tokens are what is lowered where they are what is set."""
    assert "train.batch_size=16 --set train.gradient_accumulation=2 takes as much a step with half the memory" in hint()
    said = hint(contrastive=True)
    assert "train.batch_size=16 halves the negatives of each row" in said
    assert "train.gradient_accumulation=" not in said
    assert "train.gradient_checkpointing=true keeps them" in said
    assert "more processes (torchrun) keep them" in hint(contrastive=True, gradient_checkpointing=True)
    assert "--set train.batch_tokens=2048 --set train.gradient_accumulation=2" in hint(batch_tokens=4096)


def test_tasks_say_whether_rows_compete() -> None:
    from tests.training.pairs import make

    assert make("plain").contrastive and make("match").contrastive
