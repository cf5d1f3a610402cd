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
from anyformer.explorer.trace import AttentionSite, Trace

SOUGHT = 12  # heads that are listed


def labels(opened: LoadedModel, subject: ModelInput, trace: Trace, stage: str) -> list[str]:
    """What the tokens of a stage are called: words, cells of a picture, columns of a table, or their numbers."""
    return token_names(opened, subject, trace, stage)


def sides(opened: LoadedModel, subject: ModelInput, trace: Trace, site: AttentionSite) -> tuple[list[str], list[str]]:
    """Names of queries and of keys. A decoder of a pair is named by what it says, one word later."""
    crossing = trace.sublayer(site).crosses
    if trace.sublayer(site).config.grouping != "all":
        return group_names(trace, site), group_names(trace, site)
    key_stage = trace.memory_stage(site.stage) if crossing else site.stage
    queries = labels(opened, subject, trace, site.stage)
    if crossing and subject.answers and len(subject.answers) == len(queries):
        queries = [word.text for word in subject.answers]
    return queries, labels(opened, subject, trace, key_stage)


def heads(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
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
                "entropy": downsample.numbers(downsample.entropy(weights)),
                "distance": downsample.numbers(downsample.distance(weights)),
                "small": downsample.pack(downsample.pooled(weights, downsample.THUMB)),
            }
        )
    queries, keys = sides(opened, subject, trace, chosen[0])
    return {"rows": rows, "layers": [site.layer for site in sites], "queries": len(queries), "keys": len(keys)}


def head(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
    """One head, or the mean of a layer's: as much of its matrix as is drawn, with the names at its edges."""
    subject, trace = opened.look(ask, patience)
    site = trace.site(ask.stage, ask.layer, ask.part)
    weights = pick(trace.weights(site), ask.head)
    queries, keys = sides(opened, subject, trace, site)
    part = downsample.tile(weights, ask.top, ask.left)
    made = {**part, "stage": site.stage, "heads": site.heads, "plain": site.plain}
    made["queries"] = queries[part["top"] : part["top"] + downsample.SIDE]
    made["keys"] = keys[part["left"] : part["left"] + downsample.SIDE]
    return made


def row(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
    """What one token looks at: the strongest of its weights."""
    subject, trace = opened.look(ask, patience)
    site = trace.site(ask.stage, ask.layer, ask.part)
    queries, keys = sides(opened, subject, trace, site)
    at = place(ask.position, len(queries))
    found = downsample.strongest(pick(trace.row_weights(site, at), ask.head), 512)
    return {**found, "position": at, "query": queries[at], "keys": [keys[i] for i in found["places"]]}


def seek(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
    """The heads of all layers in which one token looks most at another."""
    subject, trace = opened.look(ask, patience)
    sites = trace.layers(ask.stage, ask.part)
    if not sites:
        raise InputError(f"This model has no {ask.part} attention to search.")
    queries, keys = sides(opened, subject, trace, sites[0])
    at, to = place(ask.position, len(queries)), place(ask.to, len(keys))
    found = []
    for site in sites:
        patience.check()
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
