"""The computation of one head for one token: input, scores, scale, mask, softmax, weighted values, output
projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.block import Sublayer
from anyformer.core.norms import apply_norm
from anyformer.explorer import downsample
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.explorer.views.heads import pick, place, sides

ROWS = 24  # maximum number of keys
FEATURES = 64  # maximum number of features of a vector
ROLES = ("query", "key", "value")


@torch.inference_mode()
def steps(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """All intermediate results of one head for the query at `position`."""
    model_input, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    attention, head = trace.attention(site), request.head or 0
    seen = trace.inside(site.stage, site.layer, *(f"{site.part}.{name}" for name in (*ROLES, "weights")))
    weights = pick(seen[site.point][0], head)  # [queries, keys]
    queries, keys = sides(loaded, model_input, trace, site)
    at = place(request.position, len(queries))
    query, key, value = _of_head(trace, site, seen, head)
    bias = _bias(trace, site, seen, head, at)
    allowed = trace.mask(site).dense(len(weights), weights.shape[1])[0, 0, at]
    shown = _shown(weights[at], allowed)
    scores = key @ query[at]  # [keys]
    result = weights[at].to(value.dtype) @ value
    return {
        "read": _vector(trace.given(site)[0].x[0, at]),
        "query": _vector(query[at]),
        "own": None if trace.sublayer(site).crosses else {"key": _vector(key[at]), "value": _vector(value[at])},
        "keys": [_vector(one) for one in key[shown]],
        "values": [_vector(one) for one in value[shown]],
        "places": shown.tolist(),
        "names": [keys[i] for i in shown.tolist()],
        "of": len(keys),
        "scores": downsample.numbers(scores[shown]),
        "scale": attention.scale,
        "bias": None if bias is None else downsample.numbers(bias[shown]),
        "allowed": allowed[shown].tolist(),
        "weights": downsample.numbers(weights[at][shown]),
        "rest": max(float(1 - weights[at][shown].sum()), 0.0),
        "result": _vector(result),
        "adds": _vector(_adds(trace, site, head, result)),
        "word": queries[at],
        "position": at,
        "width": attention.config.d_head,
        "norm": _norm(trace, site, at),
    }


def _of_head(trace: Trace, site: AttentionSite, seen: Any, head: int) -> list[Tensor]:
    """Query, key and value of a head [tokens, width]; with grouped-query attention, heads share keys and values."""
    group = head // (site.heads // trace.attention(site).config.kv_heads)
    point = site.point.removesuffix("weights")
    return [seen[point + name][0, head if name == "query" else group] for name in ROLES]


def _bias(trace: Trace, site: AttentionSite, seen: Any, head: int, at: int) -> Tensor | None:
    """The position bias of the scores of one query [keys]; None if there is none."""
    point = site.point.removesuffix("weights")
    query, key = seen[point + "query"], seen[point + "key"]
    bias = trace.bias(site, query, key)
    if bias is None:
        return None
    wide = bias.expand(*bias.shape[:-1], key.shape[2]).flatten(0, -4)[0]
    return wide[head if len(wide) > 1 else 0, at if wide.shape[1] > 1 else 0]


def _shown(weights: Tensor, allowed: Tensor) -> Tensor:
    """The keys to show: all keys, or those with the largest weights and two masked ones."""
    if len(weights) <= ROWS:
        return torch.arange(len(weights))
    best = weights.topk(ROWS - 2).indices
    banned = (~allowed).nonzero().flatten()[:2]
    return torch.cat([best, banned]).unique()


def _vector(x: Tensor) -> list[float]:
    found: list[float] = downsample.numbers(x[:FEATURES], 5)
    return found


def _adds(trace: Trace, site: AttentionSite, head: int, result: Tensor) -> Tensor:
    """The output of one head after the output projection."""
    attention = trace.attention(site)
    alone = result.new_zeros(1, attention.config.width_value)
    alone[0, head * len(result) : (head + 1) * len(result)] = result
    with ablate_heads(trace.model, trace.ablated):
        found: Tensor = (attention.out(alone) - attention.out(torch.zeros_like(alone)))[0]
    return found


def _norm(trace: Trace, site: AttentionSite, at: int) -> dict[str, Any] | None:
    """The token before and after the norm of this sublayer; None if it has no norm or is not the first sublayer."""
    sublayer: Sublayer = trace.sublayer(site)
    call = trace.calls[site.stage][site.layer]
    first = next(iter(call.block.sublayers)) == site.part
    if sublayer.norm is None or not first:  # the input of a later sublayer is not stored
        return None
    before, order = call.tokens.pad().x, sublayer.order
    if order == "post":
        seen = trace.inside(site.stage, site.layer, f"{site.part}.output")
        before = before + seen[site.point.removesuffix("weights") + "output"]
    after = apply_norm(sublayer.norm, before, call.tokens.pad().mask)
    rows = [
        {"values": _vector(x[0, at]), "mean": float(x[0, at].mean()), "std": float(x[0, at].std(unbiased=False))}
        for x in (before, after)
    ]
    return {"kind": type(sublayer.norm).__name__, "order": order, "before": rows[0], "after": rows[1]}
