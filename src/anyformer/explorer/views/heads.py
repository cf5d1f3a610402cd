"""Attention itself: every head at a glance, one head in full, and one token's row."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel, ModelInput
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.token_labels import group_names, token_names
from anyformer.explorer.token_layout import attention_axis
from anyformer.explorer.trace import AttentionSite, Trace

SOUGHT = 12  # heads that are listed


def labels(loaded: LoadedModel, model_input: ModelInput, trace: Trace, stage: str) -> list[str]:
    """What the tokens of a stage are called: words, cells of an image, columns of a table, or their numbers."""
    return token_names(loaded, model_input, trace, stage)


def sides(
    loaded: LoadedModel, model_input: ModelInput, trace: Trace, site: AttentionSite
) -> tuple[list[str], list[str]]:
    """Names of queries and of keys. A decoder of a pair is named by what it says, one word later."""
    crossing = trace.sublayer(site).crosses
    if attention_axis(trace, site) != "all":
        return group_names(trace, site), group_names(trace, site)
    key_stage = trace.memory_stage(site.stage) if crossing else site.stage
    queries = labels(loaded, model_input, trace, site.stage)
    if crossing and model_input.answers and len(model_input.answers) == len(queries):
        queries = [word.text for word in model_input.answers]
    return queries, labels(loaded, model_input, trace, key_stage)


def heads(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """A small grid of each head, how spread it is (bits) and how far it looks (tokens)."""
    subject, trace = loaded.trace(request, deadline)
    sites = trace.layers(request.stage, request.part)
    chosen = sites if request.layers is None else [site for site in sites if site.layer in request.layers]
    if not chosen:
        raise InputError(f"This model has no {request.part} attention there; its attention is in the list of sites.")
    rows = []
    for site in chosen:
        deadline.check()
        weights = trace.weights(site)
        rows.append(
            {
                "layer": site.layer,
                "entropy": downsample.numbers(downsample.entropy(weights)),
                "distance": downsample.numbers(downsample.distance(weights)),
                "small": downsample.pack(downsample.pooled(weights, downsample.THUMB)),
            }
        )
    queries, keys = sides(loaded, subject, trace, chosen[0])
    return {"rows": rows, "layers": [site.layer for site in sites], "queries": len(queries), "keys": len(keys)}


def head(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """One head, or the mean of a layer's: as much of its matrix as is drawn, with the names at its edges."""
    subject, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    weights = pick(trace.weights(site), request.head)
    queries, keys = sides(loaded, subject, trace, site)
    part = downsample.tile(weights, request.top, request.left)
    made = {**part, "stage": site.stage, "heads": site.heads, "plain": site.plain}
    made["queries"] = queries[part["top"] : part["top"] + downsample.SIDE]
    made["keys"] = keys[part["left"] : part["left"] + downsample.SIDE]
    return made


def row(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """What one token looks at: the strongest of its weights."""
    subject, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    queries, keys = sides(loaded, subject, trace, site)
    at = place(request.position, len(queries))
    found = downsample.strongest(pick(trace.row_weights(site, at), request.head), 512)
    return {**found, "position": at, "query": queries[at], "keys": [keys[i] for i in found["places"]]}


def seek(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The heads of all layers in which one token looks most at another."""
    subject, trace = loaded.trace(request, deadline)
    sites = trace.layers(request.stage, request.part)
    if not sites:
        raise InputError(f"This model has no {request.part} attention to search.")
    queries, keys = sides(loaded, subject, trace, sites[0])
    at, to = place(request.position, len(queries)), place(request.to, len(keys))
    found = []
    for site in sites:
        deadline.check()
        each = trace.row_weights(site, at)[:, to].tolist()
        found += [{"layer": site.layer, "head": head, "weight": weight} for head, weight in enumerate(each)]
    found.sort(key=lambda one: -one["weight"])
    return {"heads": found[:SOUGHT], "of": len(found), "query": queries[at], "key": keys[to], "position": at, "to": to}


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
