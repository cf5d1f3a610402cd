"""What not every device and number type has: float64, much precision; and batches with nothing in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import anyformer as af
from anyformer.core import host
from anyformer.training.trainer import train
from tests.recipes.batches import training_batch
from tests.training.toy import Toy, settings

FAMILIES = ["gpt2-tiny", "bert-tiny", "vit-tiny", "transformer-tiny", "t5-tiny", "llama-tiny", "detr-tiny", "mae-tiny"]


class NoFloat64(TorchDispatchMode):
    """Raises if an operation makes a tensor of a type that Apple's GPUs do not have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            assert not (isinstance(one, Tensor) and one.dtype == torch.float64), f"{func} makes float64"
        return made


@pytest.mark.parametrize("name", FAMILIES)
def test_models_need_no_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built, called, trained for a step and written with, where the device has no float64."""
    monkeypatch.setattr(host, "NO_FLOAT64", {"cpu"})
    batch = training_batch(name)
    with NoFloat64():
        model = af.build(name).train()
        optimizer = torch.optim.AdamW(model.parameters())
        model(**batch).loss.backward()
        optimizer.step()
        if name in ("gpt2-tiny", "llama-tiny", "t5-tiny", "transformer-tiny"):
            ids = torch.tensor([[7, 8, 9], [5, 6, 7]])
            for options in ({}, {"num_beams": 2, "length_penalty": 0.6}, {"do_sample": True, "top_p": 0.9}):
                model.eval().generate(ids, max_new_tokens=3, **options)


def test_the_trainer_needs_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "NO_FLOAT64", {"cpu"})
    with NoFloat64():
        train(Toy(), settings(steps=3))


SHAPES = [(0, 5), (2, 0), (2, 1), (1, 1)]
TEXTS = ["gpt2-tiny", "bert-tiny", "llama-tiny", "transformer-tiny", "t5-tiny", "transformer-xl-tiny", "mamba-tiny"]


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_no_rows_no_tokens_and_one_token(name: str, optimized: bool) -> None:
    """With and without a mask, and with a cache: outputs have the rows and tokens of the batch, gradients exist."""
    torch.manual_seed(0)
    model = af.build(name).eval()
    model = model.optimize() if optimized else model
    for shape in SHAPES:
        ids = torch.full(shape, 7)
        pair = {"decoder_input_ids": ids} if "decoder_input_ids" in model.names else {}
        masked = {"attention_mask": torch.ones(shape, dtype=torch.long)}
        for more in ({}, masked, {"use_cache": True} if "use_cache" in model.names else {}):
            logits = model(input_ids=ids, **pair, **more)[0]
            assert logits.shape[:2] == shape and bool(logits.isfinite().all())
        logits.sum().backward()


@pytest.mark.parametrize("name", ["vit-tiny", "deit-tiny"])
def test_no_images(name: str) -> None:
    model = af.build(name).eval()
    for made in (model, model.optimize()):
        assert made(pixel_values=torch.zeros(0, 3, 32, 32)).logits.shape[0] == 0


@pytest.mark.parametrize("name", ["gpt2-tiny", "t5-tiny", "llama-tiny", "vit-tiny", "bert-tiny"])
def test_less_precise_numbers(name: str) -> None:
    """bfloat16 weights, autocast, and the switch for TF32 give the same answers to their own precision."""
    torch.manual_seed(0)
    model, batch = af.build(name).eval(), training_batch(name)
    batch.pop("labels") if name != "t5-tiny" else None
    with torch.no_grad():
        exact = model(**batch)[0]
        torch.set_float32_matmul_precision("high")
        try:
            fast = model(**batch)[0]
        finally:
            torch.set_float32_matmul_precision("highest")
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(**batch)[0]
        images = {key: x.bfloat16() if x.is_floating_point() else x for key, x in batch.items()}
        half = model.bfloat16().optimize()(**images)[0]
    size = float(exact.abs().max())
    torch.testing.assert_close(fast, exact, rtol=0, atol=1e-3 * size)
    for rough in (mixed, half):
        torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.05 * max(size, 1.0))
    assert half.dtype == torch.bfloat16 or name == "t5-tiny"  # a loss
