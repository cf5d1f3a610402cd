"""The effect of each head: how much the output changes when the head is ablated."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import AblatedHead, ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import Trace, trace

POSITIONS = 64  # last positions of a text at which outputs are compared


@torch.inference_mode()
def ablation(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """For each head of a layer, the change of the output without it: the KL divergence in bits, or the relative change
    of the last hidden states for models without class probabilities."""
    model_input, before = loaded.trace(request, deadline)
    site = before.site(request.stage, request.layer, request.part)
    before.attention(site)
    block = before.calls[site.stage][site.layer].index
    reference, bits = output(loaded, before)
    changes = []
    for head in range(site.heads):
        one = AblatedHead(stage=site.stage, layer=block, part=site.part, head=head)
        after, _ = output(loaded, trace(loaded.model, model_input.batch, (*request.ablate, one), deadline))
        changes.append(divergence(reference, after) if bits else float((after - reference).norm() / reference.norm()))
    return {"layer": site.layer, "changes": changes, "bits": bits}


def output(loaded: LoadedModel, trace_of: Trace) -> tuple[Tensor, bool]:
    """Log-probabilities [positions, classes] and True; or the last hidden states and False."""
    head = loaded.language
    if head is not None:
        return head.score(trace_of.run.tokens[head.stage].pad().x[0, -POSITIONS:]).float().log_softmax(-1), True
    logits = trace_of.output.get("logits")
    if isinstance(logits, Tensor) and loaded.pixels is None:
        return logits[0].float().reshape(-1, logits.shape[-1]).log_softmax(-1), True
    return trace_of.run.tokens[list(trace_of.run.tokens)[-1]].pad().x[0].float(), False


def divergence(reference: Tensor, after: Tensor) -> float:
    """The Kullback-Leibler divergence KL(reference || after) in bits, averaged over positions."""
    each = (reference.exp() * (reference - after)).sum(dim=-1)
    return float(each.mean()) / math.log(2)
