"""Attention over the input: images, audio, video, points, tables, and text read by latents. For any query (class token,
cell, latent, keypoint, token), the result is a map of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel, ModelInput
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.rollout import pooled_row, pooling, rollout_to_input
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.token_labels import cell_names
from anyformer.explorer.token_layout import TokenLayout, attention_map, key_stage, layout, n_queries
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.explorer.views.heads import labels, pick, place, sides
from anyformer.explorer.views.images import as_image, as_png
from anyformer.heads.base import Head
from anyformer.tasks.text import labels_of

WAVEFORM_COLUMNS = 400
MAX_QUERIES = 64  # queries per request
MAX_FEATURES = 8  # features of an item


def input_view(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The processed input, the layout of its cells, the attention over it, and the predictions."""
    model_input, trace = loaded.trace(request, deadline)
    attentions = _attentions(loaded, model_input, trace)
    if not attentions and model_input.image is None:
        raise InputError(f"{loaded.model.family} models have no attention over images, audio or other cells.")
    kind = model_input.shown.get("kind", "image" if model_input.image is not None else "words")
    made = {
        "kind": kind,
        "attentions": attentions,
        "predictions": _classes(loaded, trace),
        "of": model_input.shown.get("of", 1),
    }
    pooled = _pooling(loaded)
    made["pooled"] = None if pooled is None or pooled.stage not in trace.calls else pooling(pooled)
    where = _input_layout(trace)
    if where is not None:
        made |= {"shape": list(where.shape), "before": where.before}
    if where is not None and len(where.shape) == 2:
        made |= {"rows": where.shape[0], "columns": where.shape[1]}
    return {**made, **_drawn(model_input, where)}


def _input_layout(trace: Trace) -> TokenLayout | None:
    """The layout of the first stage whose tokens are cells of the input and keys of attention."""
    key_stages = [key_stage(trace, site) for site in trace.sites()]
    each = [layout(trace, stage) for stage in [*dict.fromkeys(key_stages), *trace.run.tokens]]
    return next((one for one in each if one is not None), None)


def _drawn(model_input: ModelInput, where: TokenLayout | None) -> dict[str, Any]:
    shown = model_input.shown
    if shown.get("kind") == "clip":
        frames = shown["frames"]
        images = [as_png(as_image(one)) for one in frames]
        return {
            "images": images,
            "size": list(frames.shape[-2:]),
            "each": len(frames) // (where.shape[0] if where else 1),
        }
    if shown.get("kind") == "points":
        return {"points": downsample.numbers(shown["items"][:, :MAX_FEATURES]), "numbers": shown["items"].shape[1]}
    if shown.get("kind") == "table":
        return {"names": shown["columns"], "values": shown["values"]}
    if model_input.image is None:
        return {"names": cell_names(model_input, where) if where is not None else []}
    made = {"image": as_png(model_input.image), "size": [model_input.image.size[1], model_input.image.size[0]]}
    if shown.get("kind") == "audio":
        waveform: Tensor = shown["waveform"]
        made |= {"waveform": summarize_waveform(waveform), "seconds": len(waveform) / shown["rate"]}
    return made


def summarize_waveform(waveform: Tensor) -> Any:
    """The minimum and maximum sample of each segment [columns, 2]."""
    columns = min(WAVEFORM_COLUMNS, len(waveform))
    cut = waveform[: len(waveform) // columns * columns].view(columns, -1)
    return downsample.numbers(torch.stack([cut.amin(dim=1), cut.amax(dim=1)], dim=1), 4)


def _attentions(loaded: LoadedModel, model_input: ModelInput, trace: Trace) -> list[dict[str, Any]]:
    """The attention whose keys are parts of the input, with its queries. For cross-attention to latents, which attend
    to the input themselves, `layers` is empty and only rollout is available."""
    kinds: dict[tuple[str, str], list[AttentionSite]] = {}
    far: dict[str, AttentionSite] = {}
    for site in trace.sites():
        stage = key_stage(trace, site)
        if layout(trace, stage) is not None:
            kinds.setdefault((site.stage, site.part), []).append(site)
        elif trace.sublayer(site).crosses and trace.memory_stage(stage) != stage:
            far.setdefault(site.stage, site)
    near = [_attention(loaded, model_input, trace, sites) for sites in kinds.values()]
    return [*near, *({**_attention(loaded, model_input, trace, [site]), "layers": []} for site in far.values())]


def _attention(
    loaded: LoadedModel, model_input: ModelInput, trace: Trace, sites: list[AttentionSite]
) -> dict[str, Any]:
    first = sites[0]
    own = None if trace.sublayer(first).crosses else layout(trace, first.stage)
    names = (
        labels(loaded, model_input, trace, first.stage)
        if own is not None
        else sides(loaded, model_input, trace, first)[0]
    )
    if own is not None:  # names of queries that are not cells
        names = [*names[: own.before], *([] if own.apart else names[own.before + own.cells :])]
    return {
        "stage": first.stage,
        "part": first.part,
        "layers": [site.layer for site in sites],
        "blocks": [trace.calls[site.stage][site.layer].index for site in sites],
        "heads": max(site.heads for site in sites),
        "plain": first.plain,
        "queries": n_queries(trace, first),
        "before": own.before if own is not None else 0,
        "cells": own.cells if own is not None else 0,
        "names": names,
    }


def _classes(loaded: LoadedModel, trace: Trace) -> list[dict[str, Any]]:
    logits = trace.output.get("logits")
    if logits is None or logits.dim() != 2:
        return []
    names = labels_of(loaded.model)
    best = logits[0].float().log_softmax(-1).exp().topk(min(5, logits.shape[-1]))
    named = [names[i] if i < len(names) else str(i) for i in best.indices.tolist()]
    return [
        {"text": name, "probability": probability}
        for name, probability in zip(named, best.values.tolist(), strict=True)
    ]


def query_attention(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The attention map of one query [heads, *shape], and the mean over heads."""
    model_input, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    at = place(request.position, n_queries(trace, site))
    maps = attention_map(trace, site, at)
    mean = maps.float().mean(dim=0)
    query = _name(loaded, model_input, trace, site, at)
    return {
        "maps": downsample.pack(maps),
        "mean": downsample.pack(mean),
        "query": query,
        "position": at,
        "max": float(mean.max()),
    }


def _name(loaded: LoadedModel, model_input: ModelInput, trace: Trace, site: AttentionSite, position: int) -> str:
    own = None if trace.sublayer(site).crosses else layout(trace, site.stage)
    if own is None:
        return sides(loaded, model_input, trace, site)[0][position]
    at = own.place(position) if own.apart else None
    names = labels(loaded, model_input, trace, site.stage)
    return names[own.token(position)] if at is None else f"{at[0]}:{names[own.before + at[1]]}"


def rollout_view(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Rollout from a token of a stage to the input, through all layers and stages below."""
    _, trace = loaded.trace(request, deadline)
    stage = request.stage if request.stage is not None else next(iter(trace.calls), None)
    if stage is None or stage not in trace.calls:
        raise InputError("This model has no attention layers for rollout.")
    own, length = layout(trace, stage), trace.tokens(stage).x.shape[1]
    at = place(request.position, length)
    row = torch.zeros(length)
    row[at if own is None else own.token(at)] = 1.0
    return {**_rollout_map(trace, stage, row, deadline), "position": at}


def _rollout_map(trace: Trace, stage: str, row: Tensor, deadline: Deadline) -> dict[str, Any]:
    below, row = rollout_to_input(trace, stage, row, deadline)
    where = layout(trace, below)
    if where is None:
        raise InputError("The tokens of the lowest stage are not parts of the input.")
    return {"map": downsample.pack(where.over(row)), "max": float(where.over(row).max())}


def pooling_view(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The pooling weights of the head over the last layer, and their rollout to the input."""
    _, trace = loaded.trace(request, deadline)
    head = _pooling(loaded)
    if head is None or head.stage not in trace.calls:
        raise InputError(f"The head of this {loaded.model.family} model does not pool tokens.")
    row, where = pooled_row(trace, head), layout(trace, head.stage)
    made = _rollout_map(trace, head.stage, row, deadline)
    if where is None or where.apart:
        raise InputError("The pooled tokens are not parts of the input.")
    own = where.over(row)
    return {"by": pooling(head), "mean": downsample.pack(own), "max": float(own.max()), "rollout": made}


def _pooling(loaded: LoadedModel) -> Head | None:
    heads = [head for head in loaded.model.heads.values() if isinstance(head, Head)]
    return next((head for head in heads if pooling(head) is not None), None)


def queries(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Attention maps [queries, *shape] of all learned queries (latents, objects, keypoints, classes), downsampled."""
    model_input, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    where = layout(trace, key_stage(trace, site))
    own = None if trace.sublayer(site).crosses else where
    if where is None or (own is not None and not own.after) or where.apart:
        raise InputError("This attention has no learned queries; only tokens of the input attend.")
    weights = pick(trace.weights(site), request.head)
    first = 0 if own is None else own.before + own.cells
    names = sides(loaded, model_input, trace, site)[0][first:]
    start = min(request.top, max(len(names) - 1, 0))
    maps = where.over(weights[first + start : first + start + MAX_QUERIES])
    tops = [float(one.max()) for one in maps]
    small = downsample.pooled(maps, downsample.THUMB) if maps.dim() > 2 else maps
    some = {"names": names[start : start + MAX_QUERIES], "first": first + start, "of": len(names)}
    return {"maps": downsample.pack(small), "max": tops, "entropy": _spread(maps), **some}


def _spread(maps: Tensor) -> Any:
    """The entropy of each query's attention over the input in bits."""
    flat = maps.flatten(1).float()
    return downsample.numbers(downsample.entropy(flat.unsqueeze(1)))
