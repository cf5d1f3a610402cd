"""Attention weights: all heads, one head, one query, and a search for heads."""

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

MAX_FOUND = 12  # heads in the result of find_heads


def labels(loaded: LoadedModel, model_input: ModelInput, trace: Trace, stage: str) -> list[str]:
    """Names of the tokens of a stage."""
    return token_names(loaded, model_input, trace, stage)


def sides(
    loaded: LoadedModel, model_input: ModelInput, trace: Trace, site: AttentionSite
) -> tuple[list[str], list[str]]:
    """Names of queries and keys. Queries of cross-attention are named by the token that they predict."""
    crossing = trace.sublayer(site).crosses
    if attention_axis(trace, site) != "all":
        return group_names(trace, site), group_names(trace, site)
    key_stage = trace.memory_stage(site.stage) if crossing else site.stage
    queries = labels(loaded, model_input, trace, site.stage)
    if crossing and model_input.answers and len(model_input.answers) == len(queries):
        queries = [word.text for word in model_input.answers]
    return queries, labels(loaded, model_input, trace, key_stage)


def heads(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """A thumbnail, the entropy in bits and the mean distance in tokens of each head."""
    model_input, trace = loaded.trace(request, deadline)
    sites = trace.layers(request.stage, request.part)
    chosen = sites if request.layers is None else [site for site in sites if site.layer in request.layers]
    if not chosen:
        raise InputError(
            f"There is no {request.part} attention in these layers; the view 'sites' lists all attention layers."
        )
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
    queries, keys = sides(loaded, model_input, trace, chosen[0])
    return {"rows": rows, "layers": [site.layer for site in sites], "queries": len(queries), "keys": len(keys)}


def head(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The attention matrix of one head or the mean of a layer, cropped to the part that is drawn."""
    model_input, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    weights = pick(trace.weights(site), request.head)
    queries, keys = sides(loaded, model_input, trace, site)
    part = downsample.tile(weights, request.top, request.left)
    made = {**part, "stage": site.stage, "heads": site.heads, "plain": site.plain}
    made["queries"] = queries[part["top"] : part["top"] + downsample.SIDE]
    made["keys"] = keys[part["left"] : part["left"] + downsample.SIDE]
    return made


def row(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The attention of one query: its largest weights."""
    model_input, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    queries, keys = sides(loaded, model_input, trace, site)
    at = place(request.position, len(queries))
    found = downsample.strongest(pick(trace.row_weights(site, at), request.head), 512)
    return {**found, "position": at, "query": queries[at], "keys": [keys[i] for i in found["places"]]}


def find_heads(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The heads of all layers in which one token attends most to another."""
    model_input, trace = loaded.trace(request, deadline)
    sites = trace.layers(request.stage, request.part)
    if not sites:
        raise InputError(f"This model has no {request.part} attention to search.")
    queries, keys = sides(loaded, model_input, trace, sites[0])
    at, to = place(request.position, len(queries)), place(request.to, len(keys))
    found = []
    for site in sites:
        deadline.check()
        each = trace.row_weights(site, at)[:, to].tolist()
        found += [{"layer": site.layer, "head": head, "weight": weight} for head, weight in enumerate(each)]
    found.sort(key=lambda one: -one["weight"])
    return {
        "heads": found[:MAX_FOUND],
        "of": len(found),
        "query": queries[at],
        "key": keys[to],
        "position": at,
        "to": to,
    }


def pick(weights: Tensor, head: int | None) -> Tensor:
    """The weights of a head, or the mean over heads."""
    if head is None:
        return weights.float().mean(dim=0)
    if not 0 <= head < len(weights):
        raise InputError(f"head is {head}; expected 0 to {len(weights) - 1}.")
    return weights[head]


def place(position: int, length: int) -> int:
    """A position as an index from 0; negative positions count from the end."""
    if not -length <= position < length:
        raise InputError(f"position is {position}; expected 0 to {length - 1}.")
    return position % length
