"""Attention itself: every head at a glance, one head in full, one token's row, and one head taken apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.block import Sublayer
from anyformer.core.norms import normalise
from anyformer.errors import InputError
from anyformer.explore import grids
from anyformer.explore.ask import Ask
from anyformer.explore.capture import Site, Trace
from anyformer.explore.names import group_names, token_names
from anyformer.explore.opened import Opened, Subject
from anyformer.explore.patience import Patience

ROWS = 24  # keys that the step-by-step view takes one by one
FEATURES = 64  # numbers of a vector that it shows


def labels(opened: Opened, subject: Subject, trace: Trace, stage: str) -> list[str]:
    """What the tokens of a stage are called: words, cells of a picture, columns of a table, or their numbers."""
    return token_names(opened, subject, trace, stage)


def sides(opened: Opened, subject: Subject, trace: Trace, site: Site) -> tuple[list[str], list[str]]:
    """Names of queries and of keys. A decoder of a pair is named by what it says, one word later."""
    crossing = trace.sublayer(site).crosses
    if trace.sublayer(site).config.grouping != "all":
        return group_names(trace, site), group_names(trace, site)
    key_stage = trace.memory_stage(site.stage) if crossing else site.stage
    queries = labels(opened, subject, trace, site.stage)
    if crossing and subject.answers and len(subject.answers) == len(queries):
        queries = [word.text for word in subject.answers]
    return queries, labels(opened, subject, trace, key_stage)


def heads(opened: Opened, ask: Ask, patience: Patience) -> dict[str, Any]:
    """A small grid of each head, how spread it is (bits) and how far it looks (tokens)."""
    subject, trace = opened.look(ask, patience)
    sites = trace.layers(ask.stage, ask.part)
    chosen = sites if ask.layers is None else [site for site in sites if site.layer in ask.layers]
    if not chosen:
        raise InputError(f"This model has no {ask.part} attention there; its attention is in the list of sites.")
    rows = []
    for site in chosen:
        patience.check()
        weights = trace.weights(site)
        rows.append(
            {
                "layer": site.layer,
                "entropy": grids.numbers(grids.entropy(weights)),
                "distance": grids.numbers(grids.distance(weights)),
                "small": grids.pack(grids.pooled(weights, grids.THUMB)),
            }
        )
    queries, keys = sides(opened, subject, trace, chosen[0])
    return {"rows": rows, "layers": [site.layer for site in sites], "queries": len(queries), "keys": len(keys)}


def head(opened: Opened, ask: Ask, patience: Patience) -> dict[str, Any]:
    """One head, or the mean of a layer's: as much of its matrix as is drawn, with the names at its edges."""
    subject, trace = opened.look(ask, patience)
    site = trace.site(ask.stage, ask.layer, ask.part)
    weights = pick(trace.weights(site), ask.head)
    queries, keys = sides(opened, subject, trace, site)
    part = grids.tile(weights, ask.top, ask.left)
    made = {**part, "stage": site.stage, "heads": site.heads, "plain": site.plain}
    made["queries"] = queries[part["top"] : part["top"] + grids.SIDE]
    made["keys"] = keys[part["left"] : part["left"] + grids.SIDE]
    if part["of"] != part["cells"]["shape"]:
        made["overview"] = grids.pack(grids.pooled(weights, grids.SIDE))
    return made


def row(opened: Opened, ask: Ask, patience: Patience) -> dict[str, Any]:
    """What one token looks at: the strongest of its weights."""
    subject, trace = opened.look(ask, patience)
    site = trace.site(ask.stage, ask.layer, ask.part)
    weights = pick(trace.weights(site), ask.head)
    queries, keys = sides(opened, subject, trace, site)
    at = place(ask.position, len(queries))
    found = grids.strongest(weights[at], 512)
    return {**found, "position": at, "query": queries[at], "keys": [keys[i] for i in found["places"]]}


def pick(weights: Tensor, head: int | None) -> Tensor:
    if head is None:
        return weights.float().mean(dim=0)
    if not 0 <= head < len(weights):
        raise InputError(f"There are heads 0 to {len(weights) - 1}; {head} is none of them.")
    return weights[head]


def place(position: int, length: int) -> int:
    if not -length <= position < length:
        raise InputError(f"There are tokens 0 to {length - 1}; {position} is none of them.")
    return position % length


@torch.inference_mode()
def steps(opened: Opened, ask: Ask, patience: Patience) -> dict[str, Any]:
    """One head for one token, as in the lectures: query times keys, scale, mask, softmax, weighted values, norm."""
    subject, trace = opened.look(ask, patience)
    site = trace.site(ask.stage, ask.layer, ask.part)
    attention, head = trace.attention(site), ask.head or 0
    seen = trace.inside(
        site.stage, site.layer, *(f"{site.part}.{name}" for name in ("query", "key", "value", "weights"))
    )
    at_point = site.point.removesuffix("weights")
    weights = pick(seen[site.point][0], head)
    queries, keys = sides(opened, subject, trace, site)
    at = place(ask.position, len(queries))
    group = head // (site.heads // attention.config.kv_heads)
    query, key, value = seen[at_point + "query"], seen[at_point + "key"], seen[at_point + "value"]
    scale = attention.config.scale if attention.config.scale is not None else attention.config.d_head**-0.5
    scores = key[0, group] @ query[0, head, at]  # [K]
    grid = trace.calls[site.stage][site.layer].tokens.grid
    bias = None if attention.positions is None else attention.positions.bias(query, key, 0, scale, grid)
    mask = attention.config.mask.dense(len(queries), len(keys), 0, scores.device)[0, 0]
    allowed = mask[at]
    shown = _shown(weights[at], allowed)
    picked = value[0, group][shown]
    made = {
        "query": _vector(query[0, head, at]),
        "keys": [_vector(one) for one in key[0, group][shown]],
        "values": [_vector(one) for one in picked],
        "places": shown.tolist(),
        "names": [keys[i] for i in shown.tolist()],
        "of": len(keys),
        "scores": grids.numbers(scores[shown]),
        "scale": scale,
        "bias": None if bias is None else grids.numbers(_at(bias, head, at, len(keys))[shown]),
        "allowed": allowed[shown].tolist(),
        "weights": grids.numbers(weights[at][shown]),
        "rest": float(1 - weights[at][shown].sum()),
        "result": _vector(weights[at].to(value.dtype) @ value[0, group]),
        "word": queries[at],
        "position": at,
        "width": attention.config.d_head,
    }
    made["mask"] = grids.pack(grids.pooled(mask.float(), grids.THUMB))
    return {**made, "norm": _norm(trace, site, at)}


def _at(bias: Tensor, head: int, at: int, keys: int) -> Tensor:
    wide = bias.expand(*bias.shape[:-3], bias.shape[-3], bias.shape[-2], keys).flatten(0, -4)[0]
    return wide[head if len(wide) > 1 else 0, at if wide.shape[1] > 1 else 0]


def _shown(weights: Tensor, allowed: Tensor) -> Tensor:
    """The keys that are taken one by one: all, or those with the largest weights and a few that are forbidden."""
    if len(weights) <= ROWS:
        return torch.arange(len(weights))
    best = weights.topk(ROWS - 2).indices
    banned = (~allowed).nonzero().flatten()[:2]
    return torch.cat([best, banned]).unique()


def _vector(x: Tensor) -> list[float]:
    found: list[float] = grids.numbers(x[:FEATURES], 5)
    return found


def _norm(trace: Trace, site: Site, at: int) -> dict[str, Any] | None:
    """The token before and after the norm of this sublayer: what attention reads, or what it leaves behind."""
    sublayer: Sublayer = trace.sublayer(site)
    if sublayer.norm is None:
        return None
    tokens = trace.calls[site.stage][site.layer].tokens
    before = tokens.x
    order = sublayer.config.order
    if order == "post":
        names = list(trace.calls[site.stage][site.layer].block.sublayers)
        if names[0] != site.part:
            return None  # what it read is another sublayer's result
        seen = trace.inside(site.stage, site.layer, f"{site.part}.output")
        before = tokens.x + seen[site.point.removesuffix("weights") + "output"]
    after = normalise(sublayer.norm, before, tokens.mask)
    kind = type(sublayer.norm).__name__
    rows = [
        {"values": _vector(x[0, at]), "mean": float(x[0, at].mean()), "std": float(x[0, at].std(unbiased=False))}
        for x in (before, after)
    ]
    return {"kind": kind, "order": order, "before": rows[0], "after": rows[1]}
