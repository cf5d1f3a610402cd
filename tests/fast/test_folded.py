"""Residual networks that only run: the same numbers with norms worked into the convolutions before them."""

from __future__ import annotations

import copy

import pytest
import torch

import anyformer as af
from anyformer.fast.folded import FoldedConvNormAct
from anyformer.layers.resnet import ConvNormAct


def build(name: str) -> af.Model:
    """With statistics and scales that matter."""
    torch.manual_seed(0)
    model = af.build(name).eval()
    with torch.no_grad():
        for path, tensor in (*model.named_parameters(), *model.named_buffers()):
            if ".norm." in path and "resnet" in path and tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor))
    return model


def folded(model: af.Model) -> list[bool]:
    """Of every convolution, whether it holds one that does the norm's work too."""
    layers = [module for module in model.modules() if isinstance(module, ConvNormAct)]
    return [isinstance(layer, FoldedConvNormAct) and layer._folded is not None for layer in layers]


@pytest.mark.parametrize(
    ("name", "field"), [("resnet-tiny", "logits"), ("detr-tiny", "pred_boxes"), ("hybrid-tiny", "logits")]
)
def test_optimized_is_the_same(name: str, field: str) -> None:
    model = build(name)
    fast = copy.deepcopy(model).optimize()
    assert all(folded(fast)) and not any(folded(model))
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected, found = model(pixel_values=pictures)[field], fast(pixel_values=pictures)[field]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert not any(folded(copy.deepcopy(fast)))


def test_training_goes_on_with_the_weights_themselves() -> None:
    """Gradients and statistics are as if nothing had been folded; what has moved on is not used any more."""
    model, fast = build("resnet-tiny"), build("resnet-tiny").optimize()
    pictures, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    for one in (model, fast):
        one.train()
        one(pixel_values=pictures, labels=labels).loss.backward()
        with torch.no_grad():
            for parameter in one.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
        one.eval()
    with torch.no_grad():
        assert torch.equal(model(pixel_values=pictures).logits, fast(pixel_values=pictures).logits)
    assert not any(folded(fast))


def test_another_type_is_folded_anew() -> None:
    fast = build("resnet-tiny").optimize()
    assert not any(folded(fast.double()))
    pictures = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = fast(pixel_values=pictures).logits
        torch.testing.assert_close(fast.optimize()(pixel_values=pictures).logits, expected)
