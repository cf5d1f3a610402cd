"""Attention rollout and attention flow through all layers (Abnar and Zuidema 2020)."""

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

MAX_FLOW_TOKENS = 48  # one maximum-flow problem per token
MAX_ROLLOUT_TOKENS = 1024
CAPACITY = 1_000_000  # scipy needs integer capacities


def own_layers(trace: Trace, stage: str | None) -> list[AttentionSite]:
    """The self-attention layers of a stage."""
    sites = trace.layers(stage, "self")
    if not sites:
        raise InputError("This model has no self-attention layers for rollout.")
    return sites


def means(trace: Trace, sites: list[AttentionSite], deadline: Deadline) -> Iterator[Tensor]:
    """Yield the mean over heads [tokens, tokens] of each layer."""
    for site in sites:
        deadline.check()
        yield trace.mean_weights(site)


def rollout(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Rollout of all tokens, and of the token at `position`."""
    model_input, trace = loaded.trace(request, deadline)
    sites = own_layers(trace, request.stage)
    names = labels(loaded, model_input, trace, sites[0].stage)
    if len(names) > MAX_ROLLOUT_TOKENS:
        raise InputError(f"The input has {len(names):,} tokens; rollout supports at most {MAX_ROLLOUT_TOKENS:,}.")
    total = roll((mean[None, None] for mean in means(trace, sites, deadline)), request.raw)[0]
    part = downsample.tile(total, request.top, request.left)
    names_of = {"queries": names[part["top"] :][: downsample.SIDE], "keys": names[part["left"] :][: downsample.SIDE]}
    at = place(request.position, len(names))
    row = downsample.strongest(total[at])
    row["keys"] = [names[i] for i in row["places"]]
    return {**part, **names_of, "stage": sites[0].stage, "row": row, "position": at}


def flow(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Attention flow from each input token to the token at `position`: weights are the capacities of a network."""
    model_input, trace = loaded.trace(request, deadline)
    sites = own_layers(trace, request.stage)
    names = labels(loaded, model_input, trace, sites[0].stage)
    if len(names) > MAX_FLOW_TOKENS:
        raise InputError(f"The input has {len(names)} tokens; attention flow supports at most {MAX_FLOW_TOKENS}.")
    at = place(request.position, len(names))
    each = largest_flow(list(means(trace, sites, deadline)), at, deadline)
    found = [float(f"{value:.6g}") for value in each]
    return {"flow": found, "keys": names, "position": at, "stage": sites[0].stage}


def largest_flow(layers: list[Tensor], at: int, deadline: Deadline) -> list[float]:
    """The maximum flow between token `at` of the last layer and each input token."""
    try:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise ConfigError("Attention flow needs scipy: pip install 'anyformer[explore]'.") from None
    n, depth = layers[0].shape[-1], len(layers)
    eye = torch.eye(n)
    rows, columns, capacity = [], [], []
    for i, weights in enumerate(layers):  # edges from level i + 1 to level i
        weighted = (0.5 * weights.cpu().float() + 0.5 * eye).numpy()
        upper, lower = np.nonzero(weighted * CAPACITY >= 1)
        rows.append(upper + (i + 1) * n)
        columns.append(lower + i * n)
        capacity.append((weighted[upper, lower] * CAPACITY).astype(np.int32))
    size = n * (depth + 1)
    edges = (np.concatenate(capacity), (np.concatenate(rows), np.concatenate(columns)))
    graph = csr_array(edges, shape=(size, size), dtype=np.int32)
    found = []
    for token in range(n):
        deadline.check()
        found.append(maximum_flow(graph, at + depth * n, token).flow_value / CAPACITY)
    return found
