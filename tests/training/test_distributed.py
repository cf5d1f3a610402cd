"""Many processes learn what one does: the same losses, every row once, and checkpoints that any number can continue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import anyformer as af
from tests.training.ranks import CUT, MANY, STEPS
from tests.training.toy import Toy

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.ranks", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("accumulated", ["", "-accumulated"])
def test_two_processes_learn_what_one_does(kind: str, accumulated: str, runs: dict[str, Any]) -> None:
    """Batches of five rows of unequal lengths: their shares differ, and a mean of means would not do."""
    one = runs[f"one{accumulated}.0"]
    for rank in (0, 1):
        two = runs[f"{kind}{accumulated}.{rank}"]
        assert len(two["losses"]) == STEPS and two["losses"] == pytest.approx(one["losses"], rel=1e-6)
        assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-6)
    assert one["losses"][-1] < 0.5 * one["losses"][0]


def test_a_parameter_that_nothing_uses(runs: dict[str, Any]) -> None:
    assert runs["ddp-unused.0"]["losses"] == pytest.approx(runs["one.0"]["losses"], rel=1e-6)


def test_the_statistics_of_batch_norm_go_on(runs: dict[str, Any]) -> None:
    """Those of the first process, which is the one that saves; a cut makes no difference, to the bit."""
    assert runs["norms-on.0"]["hash"] == runs["norms.0"]["hash"] != ""
    assert runs["norms-on.0"]["losses"] == runs["norms.0"]["losses"][-len(runs["norms-on.0"]["losses"]) :]


def test_both_processes_end_with_the_same_weights(runs: dict[str, Any]) -> None:
    assert runs["ddp.0"]["hash"] == runs["ddp.1"]["hash"] != ""


def test_minutes_go_by_one_clock(runs: dict[str, Any]) -> None:
    """A quarter of a second, in which the steps do not fit: both take the same ones, at the same rates."""
    one, other = runs["ddp-minutes.0"], runs["ddp-minutes.1"]
    assert one["hash"] == other["hash"] != "" and one["losses"] == other["losses"]
    assert 0 < len(one["losses"]) < MANY / 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_rows_are_split_without_overlap_or_loss(kind: str, runs: dict[str, Any]) -> None:
    """An epoch is 21 rows in batches of 5, 5, 5, 5 and 1, whose only row the other process repeats for nothing."""
    toy = Toy(rows=21, batch_size=5)
    batches = [batch for epoch in range(20) for batch in toy.batches(epoch)][:STEPS]
    for rank in (0, 1):
        expected = [row for batch in batches for row in (batch[rank::2] or batch[:1])]
        assert runs[f"{kind}.{rank}"]["rows"][: len(expected)] == expected


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_saved_on_two_goes_on_with_one_and_with_three(kind: str, ranks: int, runs: dict[str, Any]) -> None:
    """Cut off after step 23, so from step 20 on."""
    start = CUT // 10 * 10
    for rank in range(ranks):
        found = runs[f"{kind}-on-{ranks}.{rank}"]
        assert found["losses"] == pytest.approx(runs["one.0"]["losses"][start:], rel=1e-6)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_streams_go_on_with_any_number_of_processes(kind: str, runs: dict[str, Any]) -> None:
    """Five streams on two processes, then on one and on three: each takes up what its own streams had read."""
    one, start = runs["one-streams.0"]["losses"], CUT // 10 * 10
    assert runs[f"{kind}-streams.0"]["losses"] == pytest.approx(one[:CUT], rel=1e-6)
    for ranks in (1, 3):
        assert runs[f"{kind}-streams-on-{ranks}.0"]["losses"] == pytest.approx(one[start:], rel=1e-6)


def test_the_folder_of_a_sharded_run_is_a_model(folder: Path, runs: dict[str, Any]) -> None:
    one, sharded = (af.load(folder / name) for name in ("one", "fsdp"))
    for (name, a), (_, b) in zip(one.state_dict().items(), sharded.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9, msg=name)


def test_sharded_checkpoints_are_safetensors_of_shares(folder: Path, runs: dict[str, Any]) -> None:
    checkpoint = folder / "fsdp-cut" / "checkpoints" / "step-00000020"
    files = sorted(path for path in checkpoint.iterdir() if path.suffix == ".safetensors")
    assert len(files) == 2 and {path.suffix for path in checkpoint.iterdir()} == {".json", ".safetensors"}
    sizes = []
    for path in files:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            sizes.append(sum(file.get_tensor(name).numel() for name in names if name.startswith("model/")))
    whole = sum(parameter.numel() for parameter in Toy().model.parameters())
    assert sum(sizes) == whole and max(sizes) < 0.7 * whole
