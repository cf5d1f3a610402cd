"""Models are built in train mode, on the device and in the type that is asked for, and loaded in eval mode."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import anyformer as af
from tests.tiny import tiny_recipes


def test_built_models_train_and_loaded_ones_do_not(tmp_path: Path) -> None:
    model = af.build("bert-tiny")
    assert model.training and all(module.training for module in model.modules())
    model.save(tmp_path)
    assert not any(module.training for module in af.load(tmp_path).modules())
    assert af.load(tmp_path, device="auto").device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_meta_models_train_too() -> None:
    with torch.device("meta"):
        model = af.build("bert-tiny")
    assert model.training and model.device.type == "meta"


SOME = ("bert-tiny", "detr-tiny", "mamba-tiny", "transformer-xl-tiny")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in tiny_recipes()]
)
def test_every_recipe_in_bfloat16(name: str) -> None:
    model = af.build(name, dtype="bfloat16")
    floats = [x for x in (*model.parameters(), *model.buffers()) if x.is_floating_point()]
    assert {x.dtype for x in floats} == {torch.bfloat16}
    assert all(bool(x.isfinite().all()) for x in floats)


def test_large_models_are_built_on_meta_in_seconds() -> None:
    started = time.process_time()
    model = af.build("llama3-8b", device="meta", dtype=torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) > 8e9 and model.dtype == torch.bfloat16
    assert time.process_time() - started < 10


PEAK = """
import resource, sys, torch
import anyformer as af
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = af.build("gpt2-124m", n_layers=4, dtype=sys.argv[1])
size = sum(p.numel() * p.element_size() for p in model.parameters())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / size)
"""


def test_bfloat16_weights_never_take_the_memory_of_float32() -> None:
    ran = subprocess.run([sys.executable, "-c", PEAK, "bfloat16"], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 1.6, "a copy in float32 would take twice the size of the weights"


@pytest.mark.parametrize(
    ("options", "says"),
    [({"device": "gpu"}, "auto, cpu"), ({"dtype": "bf16"}, "bfloat16"), ({"dtype": torch.int8}, "float32")],
)
def test_unknown_devices_and_types(options: dict[str, object], says: str) -> None:
    with pytest.raises(af.ConfigError, match=says):
        af.build("bert-tiny", **options)  # type: ignore[arg-type]
