"""Model statistics: parameters per module; shape, FLOPs, memory, time and kernel of each layer."""

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
    """Number of parameters of each module; tied parameters are counted once."""
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
def stats(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Statistics of all layers for the current input."""
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
                    "activations": call.tokens.x.nbytes,
                    "attention_bytes": sum(_attention_bytes(trace, site) for site in here),
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
    """The name of the attention kernel of a layer."""
    attention = trace.attention(site)
    seen = trace.inside(site.stage, site.layer, *(f"{site.part}.{name}" for name in ("query", "key", "value")))
    query, key, value = (seen[site.point.removesuffix("weights") + name] for name in ("query", "key", "value"))
    bias = trace.bias(site, query, key)
    return choose_kernel(
        AttentionCall(query, key, value, trace.mask(site), attention.scale, bias, score=attention.score)
    ).name


def _flops(trace: Trace, block: nn.Module, sites: list[AttentionSite], tokens: int) -> int:
    """FLOPs of a block: two per weight and token, plus scores and weighted values. In cross-attention, keys and values
    are computed for the tokens of the other stage."""
    total = 2 * tokens * sum(one.numel() for one in block.parameters() if one.dim() > 1)
    for site in sites:
        part, keys = innermost(trace.sublayer(site)), _keys(trace, site)
        if isinstance(part, Attention):
            total += 2 * tokens * keys * (part.config.width_qk + part.config.width_value)
            if trace.sublayer(site).crosses:
                total += 2 * (keys - tokens) * sum(one.numel() for one in part.kv.parameters() if one.dim() > 1)
    return total


def _keys(trace: Trace, site: AttentionSite) -> int:
    """The number of keys."""
    call = trace.calls[site.stage][site.layer]
    keys = call.memory if trace.sublayer(site).crosses and call.memory is not None else call.tokens
    return keys.pad().x.shape[1]


def _attention_bytes(trace: Trace, site: AttentionSite) -> int:
    """The size of the full attention matrix of all heads in bytes. Fast kernels do not allocate it."""
    queries = trace.calls[site.stage][site.layer].tokens.pad().x.shape[1]
    return site.heads * queries * _keys(trace, site) * trace.model.dtype.itemsize


def _cache(model: Model) -> int:
    """Bytes per token in the key/value cache."""
    total = 0
    for stage in cast("Iterable[Stage]", model.stages.values()):
        for part in stage.modules() if stage.has_cache else ():
            if isinstance(part, Attention) and part.config.d_context is None:
                config = part.config
                width = (config.d_head + config.width_value // config.n_heads) * config.kv_heads
                total += width * model.dtype.itemsize
    return total
