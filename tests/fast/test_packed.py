"""Linear layers: fused roles, and matrices packed for the CPU."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.linear import FusedLinear, Linear
from anyformer.fast.packed import PackedLinear
from anyformer.fast.rewrite import optimize_products, restore_all

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")


def made(d_in: int = 24, d_out: int = 40, bias: bool = True) -> Linear:
    layer = Linear(d_in, d_out, bias)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def packed(layer: Linear, rows: int) -> PackedLinear:
    """The same layer, which has become one that packs its matrix."""
    optimize_products(layer, rows)
    assert isinstance(layer, PackedLinear)
    return layer


def test_roles_are_slices_of_one_matrix() -> None:
    """Together or apart, a role gives the same."""
    layer = FusedLinear(6, {"query": 4, "key": 2, "value": 3})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 6)
    for role, value in zip(layer.roles, layer(x).split_with_sizes(layer.widths, dim=-1), strict=True):
        torch.testing.assert_close(layer(x, role=role), value)
    with pytest.raises(ValueError, match="nothing"):
        layer.slice("nothing")


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24)])
@pytest.mark.parametrize("small", [0, 10**6])  # whether a small matrix is left as it lies at one row
def test_packed_is_plain(shape: tuple[int, ...], bias: bool, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same product from the other layout, one row or many."""
    monkeypatch.setattr("anyformer.fast.packed.SMALL", small)
    layer, x = made(bias=bias), torch.randn(*shape)
    plain = layer(x)
    layer = packed(layer, 8)
    with torch.no_grad():
        assert layer._packed is not None
        torch.testing.assert_close(layer(x), plain.detach(), rtol=1e-5, atol=1e-5)


@needs_onednn
def test_packed_follows_the_weights() -> None:
    """A step of training after packing must not leave the old matrix in use."""
    layer, x = packed(made(), 4), torch.randn(4, 24)
    with torch.no_grad():
        layer.weight.mul_(2.0)
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert layer.packed  # anew


@needs_onednn
def test_packed_stands_aside_for_gradients_and_other_types() -> None:
    layer, x = packed(made(), 4), torch.randn(4, 24)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    half = layer.to(torch.bfloat16)
    with torch.no_grad():
        assert half(x.bfloat16()).dtype == torch.bfloat16


@needs_onednn
def test_a_packed_model_can_be_copied_and_saved(tmp_path: object) -> None:
    model = af.build("bert-tiny", head="base").eval()
    ids = torch.randint(0, 250, (2, 9))
    with torch.no_grad():
        plain = model(input_ids=ids).last_hidden_state
        optimize_products(model, 16)
        torch.testing.assert_close(model(input_ids=ids).last_hidden_state, plain, rtol=1e-5, atol=1e-5)
        twin = copy.deepcopy(model)
        assert torch.equal(twin(input_ids=ids).last_hidden_state, plain)
    model.save(f"{tmp_path}/folder")
    with torch.no_grad():
        assert torch.equal(af.load(f"{tmp_path}/folder")(input_ids=ids).last_hidden_state, plain)


@needs_onednn
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_packed_products_end_with_the_activation(activation: str) -> None:
    """Whether oneDNN has the activation or not, the result is the plain one."""
    part, x = FeedForward(FeedForwardConfig(d_model=24, d_hidden=40, activation=activation)), torch.randn(3, 5, 24)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        plain = part(x)
        optimize_products(part, 8)
        assert isinstance(part.up, PackedLinear) and part.up.packed
        torch.testing.assert_close(part(x), plain, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_another_type_and_back_drops_the_packed_copy() -> None:
    """Weights that were rounded to half precision and back are other weights."""
    layer, x = packed(made(), 4), torch.randn(4, 24)
    layer.to(torch.bfloat16).to(torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast in halves beside odd widths is a GPU's own path")
def test_odd_widths_under_autocast() -> None:
    """Weights stay in float32 there while what comes in is in halves."""
    layer = Linear(16, 3).to("cuda")
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    x = torch.randn(5, 16, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), x.float() @ layer.weight.T, atol=0.05, rtol=0.02)


def test_what_was_packed_is_forgotten_by_training() -> None:
    """A fused optimizer moves weights without a new version; an answer after it must not come from the old ones."""
    layer = Linear(32, 32)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    x = torch.randn(4, 32)
    optimize_products(layer.eval(), 4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    layer.train()(x).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), x @ layer.weight.T + layer.bias)


@needs_onednn
def test_a_layer_takes_its_own_class_back() -> None:
    layer, x = made(), torch.randn(4, 24)
    with torch.no_grad():
        plain = layer(x)
        before = dict(layer.__dict__)
        assert type(packed(layer, 4)) is PackedLinear
        restore_all(layer)
        assert type(layer) is Linear and layer.__dict__ == before
        assert torch.equal(layer(x), plain)


def test_pytorch_without_onednn() -> None:
    """Some builds have neither its operators nor its switches: everything works there, unpacked."""
    command = [sys.executable, "-m", "tests.fast.without_onednn"]
    made = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert made.stdout.endswith("done\n"), made.stderr
