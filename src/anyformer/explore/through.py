"""Rollout through a whole model: what each token is made of, down to the input (Abnar and Zuidema 2020).

Half of what a layer passes on is what it attends to, half what it was. The same holds of cross-attention, whose other
half comes from the stage that it looks at; where a part has no residual connection, all of it does.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.core.block import Sublayer
from anyformer.core.feedforward import FeedForward
from anyformer.errors import InputError
from anyformer.explore.capture import Site, Trace
from anyformer.explore.patience import Patience
from anyformer.explore.surface import layout, whole
from anyformer.inputs.bridge import BridgeInput
from anyformer.inputs.latents import JoinedQueries
from anyformer.inputs.prefix import PrefixedTextInput
from anyformer.model import Stage

MOST = 4096  # tokens of a stage whose layers are multiplied


def made_of(trace: Trace, stage: str, patience: Patience) -> tuple[str, Tensor | None]:
    """The stage that the input's tokens are in, and [tokens of `stage`, tokens of that]; None: each of itself."""
    own, others, memory = _layers(trace, stage, patience)
    if others is not None and memory is not None:
        below, total = made_of(trace, memory, patience)
        return below, others if total is None else others @ total
    source = _fed(trace, stage)
    if source is None:
        return stage, own
    name, mine, its = source
    below, total = made_of(trace, name, patience)
    own = torch.eye(trace.tokens(stage).x.shape[1]) if own is None else own
    return below, own[:, mine] if total is None else own[:, mine] @ total[its]


def _layers(trace: Trace, stage: str, patience: Patience) -> tuple[Tensor | None, Tensor | None, str | None]:
    """Through the layers of one stage: shares of its own first tokens, and of the stage that it looks at."""
    calls, memory = trace.calls.get(stage, []), None
    where = layout(trace, stage)
    if where is not None and where.apart:
        raise InputError("Each frame is looked at by itself here, so nothing rolls through the clip.")
    own: Tensor | None = None
    others: Tensor | None = None
    for layer in range(len(calls)):
        for site in _sites(trace, stage, layer):
            patience.check()
            weights = whole(trace, site)
            kept = 0.5 if trace.sublayer(site).config.residual else 0.0
            if trace.sublayer(site).crosses:
                memory = trace.memory_stage(stage)
                others = (1 - kept) * weights if others is None else kept * others + (1 - kept) * weights
                own = None if own is None else kept * own
                continue
            step = (1 - kept) * weights + kept * torch.eye(len(weights))
            own = step if own is None else step @ own
            others = None if others is None else step @ others
    return own, others, memory


def _sites(trace: Trace, stage: str, layer: int) -> list[Site]:
    block = trace.calls[stage][layer].block
    for sublayer in cast("dict[str, Sublayer]", dict(block.sublayers.items())).values():
        if not isinstance(sublayer.part, (Attention, FeedForward)):
            raise InputError("Rollout is for layers of attention; this model's tokens also meet in other ways.")
    if trace.tokens(stage).x.shape[1] > MOST:
        raise InputError(f"Rollout is for up to {MOST:,} tokens; there are {trace.tokens(stage).x.shape[1]:,}.")
    return [site for site in trace.sites() if (site.stage, site.layer) == (stage, layer)]


def _fed(trace: Trace, stage: str) -> tuple[str, slice, slice] | None:
    """The stage whose tokens become tokens of this one: its name, which of ours they are, and which of its."""
    inputs = cast("Stage", trace.model.stages[stage]).inputs
    if isinstance(inputs, BridgeInput):
        return inputs.source, slice(None), slice(None)
    where = layout(trace, stage)
    if where is None:
        return None
    if isinstance(inputs, JoinedQueries):
        return inputs.config.source, slice(0, where.cells), slice(-where.cells, None)
    if isinstance(inputs, PrefixedTextInput):
        n = trace.tokens(inputs.source).x.shape[1]
        return inputs.source, slice(0, n), slice(None)
    return None
