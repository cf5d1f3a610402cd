"""Path length between two positions: the number of layers or recurrent steps that a dependency must pass."""

from __future__ import annotations

import math

import torch

from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.layers.recurrent import RNNEncoder
from anyformer.model import Model, Stage
from anyformer.schema import shown


def path_length(model: Model, start: int, end: int, stage: str = "encoder") -> int | None:
    """Return the minimum number of layers of `stage` after which token `end` depends on token `start`; None if it never
    does.

    Measured with the gradient for random inputs. A recurrent layer counts once for every step between the tokens.
    """
    if not isinstance(model, Model):
        raise InputError(f"path_length measures a model, such as af.build gives; it was given {shown(model)}.")
    if stage not in model.stages:
        raise InputError(f'This {model.family} model has no stage "{stage}"; it has {", ".join(model.stages)}.')
    part = model.stages[stage]
    assert isinstance(part, Stage)
    for name, place in (("start", start), ("end", end)):
        if type(place) is not int or not 0 <= place < (part.limit or math.inf):
            raise InputError(
                f"{name} is {place!r}; expected a token position from 0 up to the maximum length of the model."
            )
    main = part.inputs.names[0] if part.inputs.names else ""
    keyword = main.replace("input_ids", "inputs_embeds")
    if part.stack is None or part.attends is not None or keyword == main or keyword not in part.inputs.names:
        raise InputError(
            f'path_length needs a stage whose only input is token embeddings; "{stage}" of this'
            f" {model.family} model has other inputs."
        )
    vectors = _vectors(part, max(start, end) + 1)
    run = ForwardContext({keyword: vectors}, None, training=False)
    part(run, pack=False)
    layers = run.layers[stage]
    for n, tokens in enumerate(layers):
        made = tokens.x[0, end]
        # Random weights: the plain sum of a norm's output is constant, so its gradient would be zero.
        (reached,) = torch.autograd.grad(made, vectors, _random(made, seed=1), retain_graph=True)
        if bool((reached[0, start] != 0).any()):
            blocks = [part.stack.blocks[index] for index in part.stack.order[:n]]
            return sum(abs(end - start) if _recurs(block) else 1 for block in blocks)
    return None


def _vectors(stage: Stage, length: int) -> torch.Tensor:
    words = next(p for name, p in stage.inputs.named_parameters() if name.endswith("words.weight"))
    return _random(words.new_empty(1, length, words.shape[1]), seed=0).requires_grad_()


def _random(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Deterministic normal random numbers with the shape and dtype of `like`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def _recurs(block: torch.nn.Module) -> bool:
    return any(isinstance(part, RNNEncoder) for part in block.modules())
