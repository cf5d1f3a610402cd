"""The numbers of a model: shapes and parameters at each stage, work, memory, time of each layer, the kernel in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from anyformer.core.attend import AttentionCall, choose_kernel
from anyformer.core.attention import Attention
from anyformer.core.wrapper import innermost
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.model import Model, Stage


def parameters(model: Model) -> list[dict[str, Any]]:
    """Numbers that were learned, part by part, tied ones once."""
    rows: list[dict[str, Any]] = []
    seen: set[int] = set()
    for name, stage in cast("Iterable[tuple[str, Stage]]", model.stages.items()):
        rows.append({"part": f"{name}.inputs", "parameters": _count(stage.inputs, seen)})
        if stage.stack is None:
            continue
        for index, block in enumerate(stage.stack.blocks):
            rows.append({"part": f"{name}.blocks.{index}", "parameters": _count(block, seen)})
        rest = _count(stage.stack, seen)
        if rest:
            rows.append({"part": f"{name}.rest", "parameters": rest})
    rows += [{"part": name, "parameters": _count(head, seen)} for name, head in model.heads.items()]
    return rows


def _count(part: nn.Module, seen: set[int]) -> int:
    new = [one for one in part.parameters() if id(one) not in seen]
    seen.update(id(one) for one in new)
    return sum(one.numel() for one in new)


@torch.inference_mode()
def sizes(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The whole table, for the input at hand."""
    _, trace = loaded.trace(request, deadline)
    model = loaded.model
    layers = []
    for stage, calls in trace.calls.items():
        for number, call in enumerate(calls):
            here = [site for site in trace.sites() if (site.stage, site.layer) == (stage, number)]
            shape = list(call.tokens.pad().x.shape)
            layers.append(
                {
                    "stage": stage,
                    "layer": number,
                    "shape": shape,
                    "milliseconds": 1000 * call.seconds,
                    "flops": _flops(trace, call.block, here, shape[1]),
                    "bytes": sum(one.nbytes for one in call.block.parameters()),
                    "made": call.tokens.x.nbytes,
                    "square": sum(_square(trace, site) for site in here),
                    "kernels": {site.part: kernel(trace, site) for site in here if site.plain},
                    "heads": {site.part: site.heads for site in here},
                }
            )
    kept = sum(one.numel() * one.element_size() for one in model.parameters())
    return {
        "family": model.family,
        "parameters": parameters(model),
        "total": sum(one.numel() for one in model.parameters()),
        "bytes": kept,
        "dtype": str(model.dtype).removeprefix("torch."),
        "layers": layers,
        "milliseconds": 1000 * trace.seconds,
        "kept": trace.size(),
        "cache": _cache(model),
    }


def kernel(trace: Trace, site: AttentionSite) -> str:
    """The kernel that a layer's attention runs on."""
    attention = trace.attention(site)
    seen = trace.inside(site.stage, site.layer, *(f"{site.part}.{name}" for name in ("query", "key", "value")))
    query, key, value = (seen[site.point.removesuffix("weights") + name] for name in ("query", "key", "value"))
    bias = trace.bias(site, query, key)
    return choose_kernel(
        AttentionCall(query, key, value, trace.mask(site), attention.scale, bias, score=attention.score)
    ).name


def _flops(trace: Trace, block: nn.Module, sites: list[AttentionSite], tokens: int) -> int:
    """Two a weight and token, and what attention does between tokens; keys and values of another stage's tokens are
    worked out for each of those."""
    total = 2 * tokens * sum(one.numel() for one in block.parameters() if one.dim() > 1)
    for site in sites:
        part, keys = innermost(trace.sublayer(site)), _keys(trace, site)
        if isinstance(part, Attention):
            total += 2 * tokens * keys * (part.config.width_qk + part.config.width_value)
            if trace.sublayer(site).crosses:
                total += 2 * (keys - tokens) * sum(one.numel() for one in part.kv.parameters() if one.dim() > 1)
    return total


def _keys(trace: Trace, site: AttentionSite) -> int:
    """How many tokens are looked at."""
    call = trace.calls[site.stage][site.layer]
    looked = call.memory if trace.sublayer(site).crosses and call.memory is not None else call.tokens
    return looked.pad().x.shape[1]


def _square(trace: Trace, site: AttentionSite) -> int:
    """Bytes that the weights of all heads would take, if they were ever made at once; the fast kernels do not."""
    queries = trace.calls[site.stage][site.layer].tokens.pad().x.shape[1]
    return site.heads * queries * _keys(trace, site) * trace.model.dtype.itemsize


def _cache(model: Model) -> int:
    """Bytes that each token of a text adds to what decoding remembers."""
    total = 0
    for stage in cast("Iterable[Stage]", model.stages.values()):
        for part in stage.modules() if stage.has_cache else ():
            if isinstance(part, Attention) and part.config.d_context is None:
                config = part.config
                width = (config.d_head + config.width_value // config.n_heads) * config.kv_heads
                total += width * model.dtype.itemsize
    return total
