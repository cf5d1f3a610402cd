"""How far apart two words are: the number of layers, or of recurrent steps, that a dependency needs to get across."""

from __future__ import annotations

import torch

from anyformer.core.block import Block
from anyformer.core.recurrent import Recurrent
from anyformer.errors import InputError
from anyformer.model import Model, Stage
from anyformer.run import Run


def path_length(model: Model, start: int, end: int, stage: str = "encoder") -> int | None:
    """The least number of layers of `stage` after which token `end` depends on token `start`; None: never.

    Measured, not looked up: random vectors go in, and the gradient says what reached what. A recurrent layer counts
    once for every step that it takes between the two.
    """
    if stage not in model.stages:
        raise InputError(f'This {model.family} model has no stage "{stage}"; it has {", ".join(model.stages)}.')
    part = model.stages[stage]
    assert isinstance(part, Stage) and part.stack is not None
    vectors = _vectors(part, max(start, end) + 1, model)
    run = Run({part.inputs.names[0].replace("input_ids", "inputs_embeds"): vectors}, None, training=False)
    part(run, pack=False)
    layers = run.layers[stage]
    for n, tokens in enumerate(layers):
        (reached,) = torch.autograd.grad(tokens.x[0, end].sum(), vectors, retain_graph=True)
        if bool((reached[0, start] != 0).any()):
            blocks = [part.stack.blocks[index] for index in part.stack.order[:n]]
            return sum(abs(end - start) if _recurs(block) else 1 for block in blocks)
    return None


def _vectors(stage: Stage, length: int, model: Model) -> torch.Tensor:
    words = next(p for name, p in stage.inputs.named_parameters() if name.endswith("words.weight"))
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, length, words.shape[1], generator=generator, dtype=torch.float64)
    return vectors.to(model.device, words.dtype).requires_grad_()


def _recurs(block: torch.nn.Module) -> bool:
    assert isinstance(block, Block)
    return any(isinstance(part, Recurrent) for part in block.modules())
