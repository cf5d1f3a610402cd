"""Attention through all layers: rollout, and flow (Abnar and Zuidema 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.images.attention_maps import rollout as roll
from anyformer.errors import ConfigError, InputError
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.explorer.views.heads import labels, place

MOST_FLOW = 48  # tokens: each is a search for the largest flow of its own
MOST_ROLLED = 1024
WHOLE = 1_000_000  # capacities are whole numbers


def own_layers(trace: Trace, stage: str | None) -> list[AttentionSite]:
    sites = trace.layers(stage, "self")
    if not sites:
        raise InputError("This model has no layers of self-attention to follow attention through.")
    return sites


def means(trace: Trace, sites: list[AttentionSite], deadline: Deadline) -> Iterator[Tensor]:
    """The weights of layer after layer, [T, T] each: the mean of its heads."""
    for site in sites:
        deadline.check()
        yield trace.mean_weights(site)


def rollout(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    subject, trace = loaded.trace(request, deadline)
    sites = own_layers(trace, request.stage)
    names = labels(loaded, subject, trace, sites[0].stage)
    if len(names) > MOST_ROLLED:
        raise InputError(f"Rollout is for up to {MOST_ROLLED:,} tokens; there are {len(names):,}.")
    total = roll((mean[None, None] for mean in means(trace, sites, deadline)), request.raw)[0]
    part = downsample.tile(total, request.top, request.left)
    names_of = {"queries": names[part["top"] :][: downsample.SIDE], "keys": names[part["left"] :][: downsample.SIDE]}
    at = place(request.position, len(names))
    row = downsample.strongest(total[at])
    row["keys"] = [names[i] for i in row["places"]]
    return {**part, **names_of, "stage": sites[0].stage, "row": row, "position": at}


def flow(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """How much can flow from each input token to one output token, when each layer's weights are pipes."""
    subject, trace = loaded.trace(request, deadline)
    sites = own_layers(trace, request.stage)
    names = labels(loaded, subject, trace, sites[0].stage)
    if len(names) > MOST_FLOW:
        raise InputError(f"Flow is for up to {MOST_FLOW} tokens; there are {len(names)}. Rollout takes more.")
    at = place(request.position, len(names))
    each = largest_flow(list(means(trace, sites, deadline)), at, deadline)
    found = [float(f"{value:.6g}") for value in each]
    return {"flow": found, "keys": names, "position": at, "stage": sites[0].stage}


def largest_flow(layers: list[Tensor], at: int, deadline: Deadline) -> list[float]:
    """For each input token, the largest flow from token `at` of the last layer down to it."""
    try:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise ConfigError("Attention flow takes scipy: pip install 'anyformer[explore]'.") from None
    n, depth = layers[0].shape[-1], len(layers)
    eye = torch.eye(n)
    rows, columns, capacity = [], [], []
    for i, weights in enumerate(layers):  # level i + 1 draws from level i
        pipes = (0.5 * weights.cpu().float() + 0.5 * eye).numpy()
        upper, lower = np.nonzero(pipes * WHOLE >= 1)
        rows.append(upper + (i + 1) * n)
        columns.append(lower + i * n)
        capacity.append((pipes[upper, lower] * WHOLE).astype(np.int32))
    size = n * (depth + 1)
    edges = (np.concatenate(capacity), (np.concatenate(rows), np.concatenate(columns)))
    graph = csr_array(edges, shape=(size, size), dtype=np.int32)
    found = []
    for token in range(n):
        deadline.check()
        found.append(maximum_flow(graph, at + depth * n, token).flow_value / WHOLE)
    return found
