"""Attention rollout through a whole model, from a token down to the input (Abnar and Zuidema 2020).

Each layer contributes 0.5 A + 0.5 I, for self-attention and cross-attention; without a residual connection it
contributes A. Only one row is propagated from top to bottom, so no matrices are multiplied with each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.core.feedforward import FeedForward
from anyformer.core.taps import look
from anyformer.core.tokens import Tokens
from anyformer.core.wrapper import innermost
from anyformer.errors import InputError
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.token_layout import layout, mean_attention
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationHead
from anyformer.inputs.multimodal import MultimodalInput
from anyformer.inputs.prefix import PrefixedTextInput
from anyformer.inputs.projection import ProjectedInput
from anyformer.inputs.queries import PatchesAndQueries
from anyformer.layers.wrappers import NoResidual, RecurrentBlock


def rollout_to_input(trace: Trace, stage: str, row: Tensor, deadline: Deadline) -> tuple[str, Tensor]:
    """Propagate `row` [tokens of a stage] down to the input. Returns the input stage and the row over its tokens."""
    where = layout(trace, stage)
    if where is not None and where.apart:
        raise InputError("Rollout is not available: this layer attends within single frames.")
    across: Tensor | None = None  # contributions of the stage that cross-attention reads
    for layer in reversed(range(len(trace.calls.get(stage, [])))):
        for site in reversed(_sites(trace, stage, layer)):
            deadline.check()
            weights = mean_attention(trace, site)
            kept = 0.0 if isinstance(trace.sublayer(site), (NoResidual, RecurrentBlock)) else 0.5
            seen = (1 - kept) * row @ weights
            if trace.sublayer(site).crosses:
                across, row = seen if across is None else across + seen, kept * row
            else:
                row = seen + kept * row
    if across is not None:
        return rollout_to_input(trace, trace.memory_stage(stage), across, deadline)
    source = _source_stage(trace, stage)
    if source is None:
        return stage, row
    name, mine, its = source
    below = torch.zeros(trace.tokens(name).x.shape[1])
    below[its] = row[mine]
    return rollout_to_input(trace, name, below, deadline)


def _sites(trace: Trace, stage: str, layer: int) -> list[AttentionSite]:
    block = trace.calls[stage][layer].block
    for sublayer in block.sublayers.values():
        if not isinstance(innermost(sublayer.part), (Attention, FeedForward)):
            raise InputError("Rollout needs attention layers only; this model also mixes tokens in other layers.")
    return [site for site in trace.sites() if (site.stage, site.layer) == (stage, layer)]


def _source_stage(trace: Trace, stage: str) -> tuple[str, slice, slice] | None:
    """The stage whose outputs are inputs of this stage: its name, their positions here, and their positions there."""
    inputs = trace.model.stages[stage].inputs
    if isinstance(inputs, ProjectedInput):
        return inputs.source, slice(None), slice(None)
    where = layout(trace, stage)
    if where is None:
        return None
    if isinstance(inputs, PatchesAndQueries):
        return inputs.source, slice(0, where.cells), slice(-where.cells, None)
    if isinstance(inputs, (PrefixedTextInput, MultimodalInput)):
        source = inputs.source if isinstance(inputs, PrefixedTextInput) else next(iter(inputs.places))
        return source, slice(0, trace.tokens(source).x.shape[1]), slice(None)
    return None


def pooling(head: Head) -> str | None:
    """How a head pools tokens: "mean" or "attention"; None if it reads one token or all tokens separately."""
    if isinstance(head, ClassificationHead) and head.config.pooling in ("mean", "attention"):
        return head.config.pooling
    return None


@torch.inference_mode()
def pooled_row(trace: Trace, head: Head) -> Tensor:
    """The pooling weight of each token [tokens of the stage of the head]."""
    tokens = trace.run.tokens[head.stage].pad()
    real = torch.ones(tokens.x.shape[:2], dtype=torch.bool) if tokens.mask is None else tokens.mask
    skip = head.config.skip if isinstance(head, ClassificationHead) else 0
    row = torch.zeros(tokens.x.shape[1])
    if isinstance(head, ClassificationHead) and head.gather is not None:
        with look(trace.model, "*.gather.weights") as seen:
            head.gather(Tokens(tokens.x[:, skip:], None if tokens.mask is None else tokens.mask[:, skip:]))
        row[skip:] = next(iter(seen.values()))[0, 0, 0].float()
        return row
    row[skip:] = real[0, skip:].float() / real[0, skip:].sum().clamp(min=1)
    return row
