"""Every module with weights is called, so that hooks see it and offloading finds it."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import anyformer as af
from tests.recipes.batches import training_batch
from tests.tiny import tiny_recipes

UNREAD = {"encoder.pooler"}  # of encoder-decoders: published with the encoder, and read by nothing


def first_tensor(out: af.Output) -> torch.Tensor:
    return next(value for value in out.values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_module_with_weights_is_called(name: str) -> None:
    model, called = af.build(name).eval(), set[nn.Module]()
    for module in model.modules():
        module.register_forward_hook(lambda module, inputs, output: called.add(module))
    with torch.no_grad():
        model(**training_batch(name))
    owners = {path: module for path, module in model.named_modules() if any(True for _ in module.parameters(False))}
    assert owners and {path for path, module in owners.items() if module not in called} <= UNREAD


SOME = ("bert-tiny", "gpt2-tiny", "t5-tiny", "vit-tiny", "mamba-tiny", "transformer-xl-tiny")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in tiny_recipes()]
)
def test_offloaded_to_the_cpu(name: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, batch = af.build(name).eval(), training_batch(name)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = first_tensor(model(**batch))
        offloaded = accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
        assert all(p.is_meta for p in offloaded.parameters()), "weights are not on the device between the calls"
        torch.manual_seed(0)
        assert torch.equal(first_tensor(offloaded(**batch)), expected)


@pytest.mark.parametrize("name", ["gpt2-tiny", "vit-tiny"])
def test_a_hook_that_raises_leaves_the_model_usable(name: str) -> None:
    model, batch = af.build(name).eval(), training_batch(name)
    with torch.no_grad():
        expected = first_tensor(model(**batch))

        def fail(module: nn.Module, inputs: object, output: object) -> None:
            raise ZeroDivisionError

        for training in (False, True):
            model.train(training)
            stage = next(iter(model.stages.values()))
            assert stage.stack is not None
            for module in (stage.inputs, *stage.stack.blocks[-1].children(), *model.heads.values()):
                handle = module.register_forward_hook(fail)
                with pytest.raises(ZeroDivisionError), af.look(model, "*.self.weights"):
                    model(**batch, output_attentions=True)
                handle.remove()
        again = model.eval()(**batch)
        assert torch.equal(first_tensor(again), expected) and again.attentions is None


def test_a_hook_that_raises_while_generating() -> None:
    torch.manual_seed(0)
    model, ids = af.build("gpt2-tiny").eval(), torch.tensor([[5, 6, 7]])
    expected = model.generate(ids, max_new_tokens=5, num_beams=2)
    stage = next(iter(model.stages.values()))
    assert stage.stack is not None
    calls = []

    def fail(module: nn.Module, inputs: object, output: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError

    handle = stage.stack.blocks[0].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model.generate(ids, max_new_tokens=5, num_beams=2)
    handle.remove()
    assert torch.equal(model.generate(ids, max_new_tokens=5, num_beams=2), expected)
    model(ids, labels=ids).loss.backward()


def test_loaded_models_are_offloaded_traced_and_transformed(tmp_path: Path) -> None:
    """Loaded models have faster modules, whose copies of weights tools know nothing of."""
    accelerate = pytest.importorskip("accelerate")
    af.build("gpt2-tiny").save(tmp_path)
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    model = af.load(tmp_path)
    with torch.no_grad():
        expected, written = model(ids).logits, model.generate(ids, max_new_tokens=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, (ids,), strict=False)
        torch.testing.assert_close(traced(ids)["logits"], expected)
        by_row = torch.func.vmap(lambda row: model(row[None]).logits[0])(ids)
        torch.testing.assert_close(by_row, expected)
        offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        torch.testing.assert_close(offloaded(ids).logits, expected)
        assert torch.equal(offloaded.generate(ids, max_new_tokens=3), written)
