"""Embeddings, their cosine similarity, and position encodings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.core.positions import Positions, sinusoids
from anyformer.core.tokens import Tokens
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import Trace
from anyformer.explorer.views.heads import labels

FEATURES = 96  # maximum number of features of a vector
MAX_POSITIONS = 64
TOY_WIDTH = 4  # width of the small example


@torch.inference_mode()
def embeddings(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The input vectors of a stage, their cosine similarity, and its position encoding."""
    model_input, trace = loaded.trace(request, deadline)
    stage = request.stage if request.stage in trace.run.layers else next(iter(trace.run.layers))
    x = trace.run.layers[stage][0].pad().x[0]
    names = labels(loaded, model_input, trace, stage)[: downsample.SIDE]
    unit = F.normalize(x[: downsample.SIDE].float(), dim=-1)
    sines = sinusoids(torch.arange(MAX_POSITIONS), max(x.shape[-1] // 2 * 2, TOY_WIDTH))
    made: dict[str, Any] = {
        "stage": stage,
        "names": names,
        "of": list(x.shape),
        "vectors": downsample.pack(x[: downsample.SIDE, :FEATURES]),
        "similarity": downsample.pack(unit @ unit.T),
        "toy": downsample.numbers(sinusoids(torch.arange(16), TOY_WIDTH)),
        "sinusoidal": downsample.pack(sines[:, :FEATURES]),
        "sinusoidal_distance": _compare(sines)["distance"],
    }
    return {**made, **_encoding(trace, stage)}


def _encoding(trace: Trace, stage: str) -> dict[str, Any]:
    """The position encoding of a stage: a table, a rotation, or a bias."""
    part = trace.model.stages[stage]
    inputs = getattr(part.inputs, "positions", None)
    table = None if not isinstance(inputs, Positions) else _table(inputs, trace.run.layers[stage][0])
    if table is not None:
        return {
            "kind": type(inputs).__name__,
            **_compare(table),
            "table": downsample.pack(table[:MAX_POSITIONS, :FEATURES]),
        }
    attention = next((one for one in part.modules() if isinstance(one, Attention)), None)
    own = (one for one in part.modules() if isinstance(one, Positions) and one is not inputs)
    places = next(own, None)
    encoding = (
        None if places is None else places.prepare(Tokens(torch.zeros(1, MAX_POSITIONS, 1, dtype=trace.model.dtype)))
    )
    if attention is None or encoding is None:
        return {"kind": "none"}
    width, heads = attention.config.d_head, attention.config.n_heads
    one = torch.ones(1, heads, MAX_POSITIONS, width, dtype=trace.model.dtype) / width**0.5
    bias = encoding.bias(torch.zeros_like(one), torch.zeros_like(one), 0, attention.scale)
    if bias is not None:
        rows = bias.flatten(0, -4)[0] if bias.dim() > 3 else bias
        return {"kind": type(places).__name__, "bias": downsample.numbers(rows[:, -1].flip(-1))}
    query, key, _ = encoding.rotate(one, one.clone(), one)
    by_distance = (query[0, 0] @ key[0, 0].T)[0]
    return {"kind": type(places).__name__, "distance": downsample.numbers(by_distance)}


def _table(positions: Positions, tokens: Tokens) -> Tensor | None:
    """The position vectors [positions, width]; None if the encoding adds no vectors to the input."""
    limit = min(MAX_POSITIONS, positions.max_positions or MAX_POSITIONS)
    x = tokens.pad().x[:1]
    if tokens.grid is not None:
        return None
    blank = Tokens(x.new_zeros(1, limit, x.shape[-1]))
    found = positions(blank)
    return None if found is None else found.reshape(-1, found.shape[-1])[:limit]


def _compare(table: Tensor) -> dict[str, Any]:
    """The mean cosine similarity of two positions by distance."""
    unit = F.normalize(table.float(), dim=-1)
    alike = unit @ unit.T
    return {"distance": downsample.numbers(torch.stack([alike.diagonal(k).mean() for k in range(len(table))]))}
