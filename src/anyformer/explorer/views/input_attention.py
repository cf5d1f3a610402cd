"""What was read, drawn, and what attention sees of it: images, sounds, clips, points, tables, and words through a few
latents. Whatever the query is (the class token, a clicked cell, a latent, a keypoint, a word), the result is a map of
the input."""

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

WAVE = 400  # columns that a wave is drawn in
SMALL = 64  # queries that are drawn at once
NUMBERS = 8  # of an item that are sent


def input_view(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """What was read as the model sees it, the cells it is cut into, who can be asked about it, and the answer."""
    subject, trace = loaded.trace(request, deadline)
    askers = _askers(loaded, subject, trace)
    if not askers and subject.image is None:
        raise InputError(f"A {loaded.model.family} model does not look at images, nor at anything else in cells.")
    kind = subject.shown.get("kind", "picture" if subject.image is not None else "words")
    made = {"kind": kind, "askers": askers, "answers": _classes(loaded, trace), "of": subject.shown.get("of", 1)}
    pooled = _pooling(loaded)
    made["pooled"] = None if pooled is None or pooled.stage not in trace.calls else pooling(pooled)
    where = _surface(trace)
    if where is not None:
        made |= {"shape": list(where.shape), "before": where.before}
    if where is not None and len(where.shape) == 2:
        made |= {"rows": where.shape[0], "columns": where.shape[1]}
    return {**made, **_drawn(subject, where)}


def _surface(trace: Trace) -> TokenLayout | None:
    """Of the stage that reads the input, and that something looks at."""
    looked = [key_stage(trace, site) for site in trace.sites()]
    each = [layout(trace, stage) for stage in [*dict.fromkeys(looked), *trace.run.tokens]]
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
        return {"points": downsample.numbers(shown["items"][:, :NUMBERS]), "numbers": shown["items"].shape[1]}
    if shown.get("kind") == "table":
        return {"names": shown["columns"], "values": shown["values"]}
    if model_input.image is None:
        return {"names": cell_names(model_input, where) if where is not None else []}
    made = {"image": as_png(model_input.image), "size": [model_input.image.size[1], model_input.image.size[0]]}
    if shown.get("kind") == "sound":
        wave: Tensor = shown["wave"]
        made |= {"wave": wave_of(wave), "seconds": len(wave) / shown["rate"]}
    return made


def wave_of(wave: Tensor) -> Any:
    """[columns, 2]: the least and the largest sample of each stretch."""
    columns = min(WAVE, len(wave))
    cut = wave[: len(wave) // columns * columns].view(columns, -1)
    return downsample.numbers(torch.stack([cut.amin(dim=1), cut.amax(dim=1)], dim=1), 4)


def _askers(loaded: LoadedModel, model_input: ModelInput, trace: Trace) -> list[dict[str, Any]]:
    """The places of attention whose keys are parts of the input, and who asks there. Where somebody looks at those that
    look at the input (an output at latents), there are no layers to see, and rollout alone."""
    kinds: dict[tuple[str, str], list[AttentionSite]] = {}
    far: dict[str, AttentionSite] = {}
    for site in trace.sites():
        stage = key_stage(trace, site)
        if layout(trace, stage) is not None:
            kinds.setdefault((site.stage, site.part), []).append(site)
        elif trace.sublayer(site).crosses and trace.memory_stage(stage) != stage:
            far.setdefault(site.stage, site)
    near = [_asker(loaded, model_input, trace, sites) for sites in kinds.values()]
    return [*near, *({**_asker(loaded, model_input, trace, [site]), "layers": []} for site in far.values())]


def _asker(loaded: LoadedModel, model_input: ModelInput, trace: Trace, sites: list[AttentionSite]) -> dict[str, Any]:
    first = sites[0]
    own = None if trace.sublayer(first).crosses else layout(trace, first.stage)
    names = (
        labels(loaded, model_input, trace, first.stage)
        if own is not None
        else sides(loaded, model_input, trace, first)[0]
    )
    if own is not None:  # cells are clicked on; the others are named
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
    return [{"text": name, "chance": chance} for name, chance in zip(named, best.values.tolist(), strict=True)]


def query_attention(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """What one query attends to over the input, [heads, *shape], and the mean of the heads."""
    subject, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    at = place(request.position, n_queries(trace, site))
    maps = attention_map(trace, site, at)
    mean = maps.float().mean(dim=0)
    query = _name(loaded, subject, trace, site, at)
    return {
        "maps": downsample.pack(maps),
        "mean": downsample.pack(mean),
        "query": query,
        "position": at,
        "most": float(mean.max()),
    }


def _name(loaded: LoadedModel, model_input: ModelInput, trace: Trace, site: AttentionSite, position: int) -> str:
    own = None if trace.sublayer(site).crosses else layout(trace, site.stage)
    if own is None:
        return sides(loaded, model_input, trace, site)[0][position]
    at = own.place(position) if own.apart else None
    names = labels(loaded, model_input, trace, site.stage)
    return names[own.token(position)] if at is None else f"{at[0]}:{names[own.before + at[1]]}"


def rollout_view(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Rollout over the input: what reaches a token of a stage through all layers and stages below it."""
    _, trace = loaded.trace(request, deadline)
    stage = request.stage if request.stage is not None else next(iter(trace.calls), None)
    if stage is None or stage not in trace.calls:
        raise InputError("This model has no layers of attention to follow.")
    own, length = layout(trace, stage), trace.tokens(stage).x.shape[1]
    at = place(request.position, length)
    row = torch.zeros(length)
    row[at if own is None else own.token(at)] = 1.0
    return {**_rolled(trace, stage, row, deadline), "position": at}


def _rolled(trace: Trace, stage: str, row: Tensor, deadline: Deadline) -> dict[str, Any]:
    below, row = rollout_to_input(trace, stage, row, deadline)
    where = layout(trace, below)
    if where is None:
        raise InputError("What comes out at the bottom here are not parts of the input.")
    return {"map": downsample.pack(where.over(row)), "most": float(where.over(row).max())}


def pooling_view(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """What an answer that is made of many tokens weighs: the tokens themselves, and through all layers the input."""
    _, trace = loaded.trace(request, deadline)
    head = _pooling(loaded)
    if head is None or head.stage not in trace.calls:
        raise InputError(f"The answer of a {loaded.model.family} model is not read off many tokens at once.")
    row, where = pooled_row(trace, head), layout(trace, head.stage)
    made = _rolled(trace, head.stage, row, deadline)
    if where is None or where.apart:
        raise InputError("What the answer is read off are not parts of the input.")
    own = where.over(row)
    return {"by": pooling(head), "mean": downsample.pack(own), "most": float(own.max()), "rolled": made}


def _pooling(loaded: LoadedModel) -> Head | None:
    heads = [head for head in loaded.model.heads.values() if isinstance(head, Head)]
    return next((head for head in heads if pooling(head) is not None), None)


def queries(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Attention maps [queries, *shape] of all learned queries (latents, objects, keypoints, classes), small enough to
    be drawn side by side."""
    subject, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    where = layout(trace, key_stage(trace, site))
    own = None if trace.sublayer(site).crosses else where
    if where is None or (own is not None and not own.after) or where.apart:
        raise InputError("Nobody asks here but parts of the input themselves.")
    weights = pick(trace.weights(site), request.head)
    first = 0 if own is None else own.before + own.cells
    names = sides(loaded, subject, trace, site)[0][first:]
    start = min(request.top, max(len(names) - 1, 0))
    maps = where.over(weights[first + start : first + start + SMALL])
    tops = [float(one.max()) for one in maps]
    small = downsample.pooled(maps, downsample.THUMB) if maps.dim() > 2 else maps
    some = {"names": names[start : start + SMALL], "first": first + start, "of": len(names)}
    return {"maps": downsample.pack(small), "most": tops, "entropy": _spread(maps), **some}


def _spread(maps: Tensor) -> Any:
    """Bits of each query's attention over the input."""
    flat = maps.flatten(1).float()
    return downsample.numbers(downsample.entropy(flat.unsqueeze(1)))
