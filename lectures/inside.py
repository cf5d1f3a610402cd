"""Where the weights of a model are: nothing else in the lectures knows the names of its parameters and modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def module(model: Any, ending: str) -> Any:
    """The one module whose name ends so; of a sublayer, its part, which has the same name."""
    found = {name: one for name, one in model.named_modules() if f".{name}".endswith(f".{ending}")}
    (only,) = found.values()
    return only


def weight(model: Any, ending: str) -> Tensor:
    """The one parameter whose name ends so, without gradient."""
    return parameter(model, ending).detach()


def parameter(model: Any, ending: str) -> Tensor:
    """The one parameter whose name ends so."""
    found: Tensor
    (found,) = [one for name, one in model.named_parameters() if f".{name}".endswith(f".{ending}")]
    return found


def words(model: Any, stage: str) -> Tensor:
    """The table of token vectors of a stage [vocab_size, d_model]."""
    return parameter(model, f"{stage}.inputs.words.weight")


def positions(model: Any, stage: str) -> Tensor:
    """The table of position vectors of a stage [positions, d_model]."""
    return parameter(model, f"{stage}.inputs.positions.weight")


def segments(model: Any, stage: str) -> Tensor:
    """The table of segment vectors of a stage [segments, d_model]."""
    return parameter(model, f"{stage}.inputs.types.weight")


def patches(model: Any, stage: str = "encoder") -> tuple[Tensor, Tensor]:
    """The matrix that makes vectors of patches [d_model, numbers of a patch], and its bias."""
    return weight(model, f"{stage}.inputs.patches.weight"), weight(model, f"{stage}.inputs.patches.bias")


def projections(model: Any, stage: str, block: int = 0, part: str = "self") -> dict[str, tuple[Tensor, Tensor]]:
    """Weight [out, in] and bias of the maps to queries, keys and values, and of the output, of one attention."""
    inside = _part(model, stage, block, part)
    if hasattr(inside, "qkv"):
        pairs = zip(inside.qkv.weight.chunk(3), inside.qkv.bias.chunk(3), strict=True)
    else:
        pairs = zip(
            [inside.query.weight, *inside.kv.weight.chunk(2)],
            [inside.query.bias, *inside.kv.bias.chunk(2)],
            strict=True,
        )
    found = dict(zip(("query", "key", "value"), pairs, strict=True))
    found["output"] = (inside.out.weight, inside.out.bias)
    return {name: (one.detach(), bias.detach()) for name, (one, bias) in found.items()}


def feed_forward(model: Any, stage: str, block: int = 0) -> Any:
    """The feed-forward network of a block; its two layers are `up` and `down`."""
    return _part(model, stage, block, "feedforward")


def norm(model: Any, stage: str, block: int = 0, part: str = "self") -> Any:
    """The norm of a part of a block."""
    return module(model, f"{stage}.blocks.{block}.{part}.norm")


def output_maps(model: Any, part: str = "self", block: int | None = None) -> list[Tensor]:
    """The last matrix of each such part ("self", "cross" or "feedforward"), of all blocks or one; zeros silence it."""
    last = "down" if part == "feedforward" else "out"
    where = "" if block is None else f".blocks.{block}"
    ending = f"{where}.{part}.{last}.weight"
    return [one.detach() for name, one in model.named_parameters() if name.endswith(ending)]


def block_parameters(model: Any, stage: str) -> list[Tensor]:
    """All parameters of the blocks of a stage."""
    return [one for name, one in model.stages[stage].named_parameters() if "blocks" in name]


def classifier(model: Any) -> tuple[Tensor, Tensor]:
    """The last matrix of a classifier [classes, d_model], and its bias."""
    return weight(model, "classify.classes.weight"), weight(model, "classify.classes.bias")


def language(model: Any) -> tuple[Tensor, Tensor]:
    """The map from a decoder's state to the vocabulary [vocab_size, width], and its bias."""
    return weight(model, "language.words.weight"), weight(model, "language.bias")


def rnns(model: Any) -> list[nn.RNNBase]:
    """The recurrent networks of PyTorch inside a model, in its order."""
    return [one for one in model.modules() if isinstance(one, nn.RNNBase)]


def first_state(model: Any, features: Tensor) -> Tensor:
    """The decoder's first state, made of a vector of the encoder, of a recurrent decoder with attention."""
    return torch.tanh(nn.functional.linear(features, weight(model, "start.weight"), weight(model, "start.bias")))


def score(model: Any) -> dict[str, Tensor]:
    """The matrices of additive attention by name: query, key and value."""
    return {name: weight(model, f"score.{name}") for name in ("query", "key", "value")}


def _part(model: Any, stage: str, block: int, part: str) -> Any:
    return module(model, f"{stage}.blocks.{block}.{part}")
