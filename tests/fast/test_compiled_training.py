"""What a compiled training step on a GPU swaps, with plain stand-ins for its kernels: the same losses and gradients."""

from __future__ import annotations

import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer as af
from anyformer import fast
from anyformer.core import rewrites
from anyformer.core.attention import Attention
from anyformer.core.feedforward import FeedForward
from anyformer.core.linear import Linear
from anyformer.fast.compiled_training import CompiledAttention, CompiledFeedForward, compiled_parts
from anyformer.fast.rewrite import ON_GPU
from anyformer.fast.swap import plain_class, swap, swapped
from tests.recipes.batches import training_batch


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Kernels made of PyTorch's own operations, which count their calls."""
    found: Counter[str] = Counter()

    def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        found["gelu"] += 1
        return F.gelu(F.linear(x, weight, bias), approximate="tanh" if tanh else "none")

    def linear_parts(x: Tensor, weight: Tensor, bias: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        found["parts"] += 1
        return F.linear(x, weight, bias).split_with_sizes(widths, dim=-1)

    kernels: Any = ModuleType("anyformer.fast.triton_training")
    kernels.pays, kernels.linear_gelu, kernels.linear_parts = lambda x: True, linear_gelu, linear_parts
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    return found


def built(name: str, on_gpu: bool) -> af.Model:
    """With the classes that a model on a GPU has while it is trained, or its own."""
    torch.manual_seed(0)
    model = af.build(name).eval()
    for module in list(model.modules()) if on_gpu else ():
        if type(module) in ON_GPU:
            swap(module, ON_GPU[type(module)])
    return model


def learned(model: af.Model, name: str) -> list[Tensor | None]:
    loss = model(**training_batch(name)).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "vit-tiny", "llama-tiny", "gemma3-tiny", "t5-tiny"])
def test_a_step_learns_the_same(name: str, on_gpu: bool, calls: Counter[str]) -> None:
    """Every attention and every feed-forward network is swapped, whatever class it has on the device; those whose
    layers the kernels know take them."""
    model = built(name, on_gpu)
    kinds, plain = [type(module) for module in model.modules()], learned(model, name)
    assert not calls
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    networks = [m for m in model.modules() if isinstance(m, FeedForward)]
    with swapped(compiled_parts(model)):
        assert {type(m) for m in attentions} == {CompiledAttention}
        assert {type(m) for m in networks} == {CompiledFeedForward}
        found = learned(model, name)
    assert [type(module) for module in model.modules()] == kinds
    for ours, theirs in zip(found, plain, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    if name in ("gpt2-tiny", "bert-tiny", "vit-tiny"):
        assert calls == {"parts": len(attentions), "gelu": len(networks)}


def test_hooks_and_layers_of_others_are_left_alone(calls: Counter[str]) -> None:
    """A hooked layer, and one that a tool has put in the place of ours, are called."""
    model: Any = built("gpt2-tiny", on_gpu=True)
    first, second = model.decoder.blocks
    seen: list[Tensor] = []
    first.self.qkv.register_forward_hook(lambda module, given, out: seen.append(out))

    class Own(nn.Module):
        def __init__(self, inner: Linear) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)  # type: ignore[no-any-return]

    second.feedforward.up = Own(second.feedforward.up)
    plain = learned(model, "gpt2-tiny")
    with swapped(compiled_parts(model)):
        found = learned(model, "gpt2-tiny")
        assert plain_class(first.self.part) is Attention is type(first.self.part)
    assert len(seen) == 2 and calls == {"parts": 1, "gelu": 1}
    for ours, theirs in zip(found, plain, strict=True):
        assert ours is not None and theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_the_kernel_of_the_loss_is_found_within_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile follows the way to it."""
    kernels: Any = ModuleType("anyformer.fast.triton_training")
    kernels.summed_entropy = lambda logits, labels, smoothing: F.cross_entropy(logits, labels, reduction="sum")
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setitem(rewrites.RULES, "cross_entropy", fast._summed_entropy)  # as where there is a GPU with Triton
    logits, labels = torch.randn(4, 9), torch.tensor([1, 2, 3, 4])
    compute = torch.compile(lambda x, y: rewrites.apply("cross_entropy")(x, y, 0.0), backend="eager", fullgraph=True)
    torch.testing.assert_close(compute(logits, labels), F.cross_entropy(logits, labels, reduction="sum"))
