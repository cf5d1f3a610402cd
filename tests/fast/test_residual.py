"""The fused residual stream, with plain stand-ins for its kernels: the numbers of blocks that add by themselves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer as af
from anyformer.core import rewrites
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, Sublayer
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.norms import LayerScale
from anyformer.core.stack import Stack
from anyformer.core.tokens import Tokens
from anyformer.fast.decode_graph import twin
from anyformer.fast.residual import FusedStack, FusedSublayer, Kernels, SettlingBlock
from anyformer.fast.rewrite import fused_residuals
from tests.recipes.batches import training_batch

DECODERS = ("gpt2-tiny", "gpt1-tiny", "llama-tiny", "gemma3-tiny", "gptneox-tiny", "mistral-tiny", "qwen3-tiny")
NAMES = (*DECODERS, "transformer-tiny", "whisper-toy", "bart-tiny", "git-tiny")
Calls = Counter[str]


KNOWN = (None, "relu", "gelu", "gelu_tanh", "silu")  # activations that the products end with


@contextmanager
def fused(model: nn.Module, rows: bool = True) -> Iterator[Calls]:
    """The model with fused sums, whose kernels are PyTorch's own and count their calls; with `rows`, products too."""
    calls: Calls = Counter()

    def add_norm(x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        calls["sum and norm"] += 1
        total = x + y
        return total, norm(total)

    def linear(
        x: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.Module | None, activation: str | None, add: Any
    ) -> Tensor:
        calls["product and sum" if add is not None else "norm and product"] += 1
        y = F.linear(x if norm is None else norm(x), weight, bias)
        assert activation in KNOWN
        y = y if activation is None else ACTIVATIONS[activation](y)
        return y if add is None else add + y

    def can_linear(x: Tensor, weight: Tensor, norm: nn.Module | None = None, activation: str | None = None) -> bool:
        return rows and activation in KNOWN

    with fused_residuals(model, Kernels(lambda x, norm: True, add_norm, linear, can_linear)):
        yield calls


def built(name: str, **settings: Any) -> af.Model:
    torch.manual_seed(0)
    return af.build(name, **settings).eval()


def batch_of(model: af.Model, rows: int) -> tuple[dict[str, Tensor], str]:
    """What the model reads but for the words, and the name of those."""
    generator = torch.Generator().manual_seed(1)
    batch: dict[str, Tensor] = {}
    if "input_features" in model.names:
        batch["input_features"] = training_batch("whisper-toy")["input_features"][:1].repeat(rows, 1, 1)
    if "pixel_values" in model.names:
        batch["pixel_values"] = torch.randn(rows, 3, 32, 32, generator=generator)
    if "decoder_input_ids" in model.names:
        if "input_ids" in model.names:
            batch["input_ids"] = torch.randint(5, 250, (rows, 6), generator=generator)
        return batch, "decoder_input_ids"
    return batch, "input_ids"


@torch.no_grad()
def decoded(model: af.Model, rows: int, fuse: bool) -> tuple[list[Tensor], list[Calls]]:
    """Logits of a text that is read and of four steps after it, each of one token."""
    batch, name = batch_of(model, rows)
    words = torch.randint(5, 60, (rows, 12), generator=torch.Generator().manual_seed(2))
    out = model(**batch, **{name: words[:, :8]}, use_cache=True)
    cache, logits, counts = out.past_key_values, [out.logits[:, -1]], []
    for i in range(8, 12):
        if not fuse:
            logits.append(model(**{name: words[:, i : i + 1]}, past_key_values=cache).logits[:, -1])
            continue
        with fused(model) as calls:
            logits.append(model(**{name: words[:, i : i + 1]}, past_key_values=cache).logits[:, -1])
        counts.append(calls)
    return logits, counts


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_steps_with_a_cache(name: str, rows: int) -> None:
    """Bit for bit; and the kernels are taken: every sum, and at one row every product before or after a norm."""
    model = built(name)
    expected, _ = decoded(model, rows, fuse=False)
    found, counts = decoded(model, rows, fuse=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    stack = next(stage.stack for stage in model.stages.values() if stage.has_cache)
    assert stack is not None
    parallel = name == "gptneox-tiny"
    for calls in counts:
        sublayers = sum(len(block.sublayers) for block in stack.blocks)  # type: ignore[arg-type, misc]
        first: Any = stack.blocks[0]
        if parallel:
            assert not calls
        elif next(iter(first.sublayers.values())).order == "pre" and rows == 1:
            assert calls["product and sum"] == sublayers  # so nothing is left to be summed before a norm
            crossing = sum(sublayer.crosses for block in stack.blocks for sublayer in block.sublayers.values())  # type: ignore[operator, union-attr]
            assert calls["norm and product"] == sublayers - crossing and calls["sum and norm"] == 0
        else:
            assert calls["sum and norm"] >= sublayers - 1
            assert calls["product and sum"] == calls["norm and product"] == 0


@pytest.mark.parametrize(
    "name", "gpt2-tiny gpt1-tiny llama-tiny bert-tiny vit-tiny deit-tiny t5-tiny detr-tiny detr-anchors".split()
)
@pytest.mark.parametrize("mode", ["eval", "train", "checkpointed"])
def test_training(name: str, mode: str) -> None:
    """Loss and gradients are equal, with dropout and recomputed blocks too."""
    model = built("detr-tiny", auxiliary_loss=True, anchors=True) if name == "detr-anchors" else built(name)
    model, found = model.train(mode != "eval"), []
    for stack in [module for module in model.modules() if isinstance(module, Stack)]:
        stack.gradient_checkpointing = mode == "checkpointed"
    batch = training_batch("detr-tiny" if name == "detr-anchors" else name)

    def learn() -> None:
        torch.manual_seed(3)
        loss = model(**batch).loss
        found.append((loss.detach(), torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)))

    learn()
    with fused(model, rows=False) as calls:
        learn()
    assert calls["sum and norm"] > 0
    (plain, gradients), (loss, others) = found
    assert torch.equal(plain, loss)
    for ours, theirs in zip(others, gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["vit-tiny", "deit-tiny"])
def test_with_a_last_block_that_does_only_what_is_read(name: str) -> None:
    """As in a compiled training step, which has both."""
    model, batch = built(name), training_batch(name)

    def learn() -> list[Tensor]:
        loss = model(**batch).loss
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    expected = learn()
    with rewrites.applied("training", model, False), fused(model, rows=False) as calls:
        found = learn()
    assert calls["sum and norm"] > 0
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2-tiny", "gpt1-tiny", "llama-tiny", "gptneox-tiny", "vit-tiny"])
def test_one_graph_when_it_is_compiled(name: str) -> None:
    model = built(name)
    stack = next(stage.stack for stage in model.stages.values() if stage.stack is not None)
    x = torch.randn(2, 7, 64)
    with torch.no_grad(), fused(model, rows=False):
        expected = stack(Tokens(x))[0].x
        compiled = torch.compile(lambda x: stack(Tokens(x))[0].x, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("name", ["gpt2-tiny", "gpt1-tiny", "gemma3-tiny", "gptneox-tiny", "transformer-tiny"])
def test_a_watcher_sees_what_it_saw(name: str, rows: bool) -> None:
    """At every point, tensors and no sums that were not made."""
    model, shown = built(name), []
    batch, words = batch_of(model, 1)
    batch[words] = torch.tensor([[7]])

    def watch() -> None:
        with torch.no_grad(), af.look(model, "*") as seen:
            model(**batch)
        shown.append(dict(seen))

    watch()
    with fused(model, rows):
        watch()
    plain, found = shown
    assert sorted(plain) == sorted(model.points) and sorted(found) == sorted(plain)
    for point, value in plain.items():
        assert type(found[point]) is Tensor, point
        assert torch.equal(found[point], value), point


@pytest.mark.parametrize("where", ["norm", "qkv", "out", "up", "down", "self", "feedforward", "0"])
def test_a_hook_leaves_the_fused_path(where: str) -> None:
    """It sees the plain tensors of a stack that adds by itself, and the other stacks stay fused."""
    model, calls_seen = built("gpt2-tiny"), []
    path = next(path for path, _ in model.named_modules() if ".blocks.0" in path and path.endswith(f".{where}"))
    module = model.get_submodule(path)
    module.register_forward_hook(lambda module, given, out: calls_seen.append((given[0], out)))
    with torch.no_grad():
        expected = model(torch.tensor([[7]])).logits
        with fused(model) as calls:
            assert torch.equal(model(torch.tensor([[7]])).logits, expected)
    assert not calls and len(calls_seen) == 2
    for one, other in zip(*calls_seen, strict=True):
        one, other = (x.x if isinstance(x, Tokens) else x for x in (one, other))
        assert type(one) is Tensor is type(other) and torch.equal(one, other)


@pytest.mark.parametrize("tool", ["peft", "parametrize"])
@pytest.mark.parametrize("rows", [1, 3])
def test_adapters_take_part(tool: str, rows: int) -> None:
    model: Any = built("gpt2-tiny")
    if tool == "peft":
        peft = pytest.importorskip("peft")
        settings = peft.LoraConfig(r=4, target_modules=["qkv", "out", "up", "down"], init_lora_weights=False)
        peft.get_peft_model(model, settings).eval()
    else:
        from anyformer.core.lora import add_lora, lora_layers

        add_lora(model, 4, 8.0, ["*.blocks.*"])
        for _, _, adapter in lora_layers(model):
            nn.init.normal_(adapter.b)
    plain, _ = decoded(built("gpt2-tiny"), rows, fuse=False)
    expected, _ = decoded(model, rows, fuse=False)
    found, _ = decoded(model, rows, fuse=True)
    assert not torch.allclose(expected[-1], plain[-1], atol=1e-3)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_an_activation_that_no_product_ends_with(activation: str) -> None:
    model = built("gpt2-tiny", activation=activation)
    expected, _ = decoded(model, 1, fuse=False)
    found, counts = decoded(model, 1, fuse=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert counts[0]["product and sum"] == (4 if activation == "gelu" else 2)


class Halved(Attention):
    """As a user may have it: the heads' results count half."""

    def forward(self, *given: Any, **named: Any) -> Tensor:
        return super().forward(*given, **named) / 2


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", ["sandwich", "layer scale", "own attention"])
def test_sublayers_with_more_than_the_kernels_know(case: str, rows: int) -> None:
    """A second norm, a learned scale, a part of another class: they are not left out."""
    width, generator = 16, torch.Generator().manual_seed(0)
    config = AttentionConfig(d_query=width, n_heads=2)
    attention = Halved(config) if case == "own attention" else Attention(config)
    more: dict[str, Any] = {}
    if case != "own attention":
        more = {"post_norm": nn.LayerNorm(width)} if case == "sandwich" else {"layer_scale": LayerScale(width, 0.1)}
    network = FeedForward(FeedForwardConfig(d_model=width, d_hidden=24))
    sublayers = {"self": Sublayer(attention, nn.LayerNorm(width), **more)}
    block = Block({**sublayers, "feedforward": Sublayer(network, nn.LayerNorm(width))})
    stack = Stack([block], nn.LayerNorm(width)).eval()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        x = torch.randn(rows, 1, width, generator=generator)
        expected = stack(x)[0]
        with fused(stack) as calls:
            assert torch.equal(stack(Tokens(x))[0].x, expected)
    assert calls


def test_classes_come_back_even_after_an_error() -> None:
    model = built("gpt2-tiny")
    kinds = [type(module) for module in model.modules()]
    fused_kinds = []

    def fail(*args: Any) -> None:
        fused_kinds.extend(type(module) for module in model.modules())
        raise ZeroDivisionError

    part: Any = model.stages["decoder"].stack.blocks[0].sublayers["self"].part  # type: ignore[union-attr]
    part.mix = fail
    with pytest.raises(ZeroDivisionError), fused(model):
        model(torch.tensor([[7]]))
    assert {FusedStack, FusedSublayer} <= set(fused_kinds)
    assert [type(module) for module in model.modules()] == kinds


def test_another_thread_meets_the_plain_model() -> None:
    """A step is captured on a twin around the same weights, so that nobody else meets its classes and kernels."""
    model, ids = built("gpt2-tiny"), torch.tensor([[7, 9, 30]])
    kinds, other = [type(module) for module in model.modules()], twin(model)
    assert all(one is two for one, two in zip(model.parameters(), other.parameters(), strict=True))
    with torch.no_grad():
        expected, found = model(ids).logits, []
        with fused(other) as calls:
            assert [type(module) for module in model.modules()] == kinds != [type(one) for one in other.modules()]
            thread = threading.Thread(target=lambda: found.append(torch.no_grad()(model)(ids).logits))
            thread.start()
            thread.join()
            assert not calls
            assert torch.equal(other(ids).logits, expected) and calls
    assert torch.equal(found[0], expected)
    model.get_parameter("decoder.final_norm.weight").data.mul_(2)
    with torch.no_grad():
        assert torch.equal(other(ids).logits, model(ids).logits)


class Doubled(Sublayer):
    """As a family may have it: the contribution counts twice."""

    def add(self, tokens: Tokens, y: Tensor) -> Tokens:
        return tokens.replace(tokens.x + 2 * y)


def test_a_block_that_is_not_fused_among_others() -> None:
    """It makes the sum before it begins."""
    model = built("gpt2-tiny", n_layers=3)
    stack = model.stages["decoder"].stack
    assert stack is not None
    middle: Any = stack.blocks[1]
    middle.sublayers["feedforward"].__class__ = Doubled
    ids = torch.tensor([[7, 9, 30], [4, 5, 6]])
    with torch.no_grad():
        expected = model(ids).logits
        with fused(model) as calls:
            assert type(middle) is SettlingBlock and type(stack.blocks[0]) is Block
            assert type(stack) is FusedStack and type(middle.sublayers["self"]) is Sublayer
            assert torch.equal(model(ids).logits, expected)
    assert calls["sum and norm"] == 3  # within the first block and the last, and at the end
