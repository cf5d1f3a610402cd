"""Numbers of tiny recipes that must not depend on anyformer.fast."""

from __future__ import annotations

import torch
from torch import Tensor

import anyformer as af
from tests.goldens.collect import tensors
from tests.recipes.batches import training_batch

RECIPES = (
    "bert-tiny gpt2-tiny llama-tiny gemma3-tiny t5-tiny transformer-tiny vit-tiny detr-tiny mamba-tiny luong-tiny"
    " clip-tiny perceiver-tiny timesformer-tiny transformer-xl-tiny resnet-tiny"
).split()
PROMPT = torch.tensor([[5, 6, 7, 8], [9, 8, 5, 1]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def numbers() -> dict[str, Tensor]:
    """Outputs and losses, gradients, and ids by greedy search and beams, also of padded prompts."""
    torch.set_num_threads(1)
    found: dict[str, Tensor] = {}
    for name in RECIPES:
        torch.manual_seed(0)
        model = af.build(name).eval()
        batch = training_batch(name)
        with torch.no_grad():
            found |= dict(tensors(model(**batch), name))
        loss = model(**batch).get("loss")
        if loss is not None:
            loss.backward()
            found[f"{name}/gradient"] = torch.stack(
                [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
            )
        if name in ("gpt2-tiny", "llama-tiny", "gemma3-tiny", "transformer-tiny", "t5-tiny", "mamba-tiny"):
            for beams in (1, 3):
                ids = model.generate(PROMPT, attention_mask=MASK, max_new_tokens=8, num_beams=beams, eos_token_id=None)
                found[f"{name}/ids/{beams}"] = ids
    return {name: value.detach().clone().contiguous() for name, value in found.items()}
