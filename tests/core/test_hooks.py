"""Forward hooks fire at every module that has weights, position tables and class tokens among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import anyformer as af
from anyformer.core.wrapper import Wrapper
from tests.recipes.batches import training_batch
from tests.tiny import tiny_recipes

# Not called, since the model does not use them (a pooler of a checkpoint's encoder), or only their table (a tied head).
ASIDE = {"encoder.pooler", "discriminator.inputs.words"}


def uncalled(model: af.Model, batch: dict[str, Any]) -> set[str]:
    """Modules with weights of their own whose hooks do not fire."""
    silent = set()
    for path, module in model.named_modules():
        if module._parameters and not isinstance(module, Wrapper) and path not in ASIDE:
            silent.add(path)

            def seen(module: nn.Module, given: Any, out: Any, path: str = path) -> None:
                silent.discard(path)

            module.register_forward_hook(seen)
    with torch.no_grad():
        model(**batch)
    return silent


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_module_with_weights_is_called(name: str) -> None:
    torch.manual_seed(0)
    assert uncalled(af.build(name).eval(), training_batch(name)) == set()


def test_anchors_are_called() -> None:
    model = af.build("detr-tiny", anchors=True, auxiliary_loss=True).eval()
    assert uncalled(model, training_batch("detr-tiny")) == set()


def test_a_hook_may_change_positions() -> None:
    """What a hook returns for a table of positions is what the model adds."""
    model, ids = af.build("gpt2-tiny").eval(), torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        before = model(ids).logits
        handle = model.decoder.inputs.positions.register_forward_hook(lambda module, given, out: out * 2)
        assert not torch.allclose(model(ids).logits, before)
        handle.remove()
        assert torch.equal(model(ids).logits, before)
