"""What each head is good for: how much the answer changes when it says nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import AblatedHead, ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import Trace, trace

PLACES = 64  # at the end of a text, at which words are compared


@torch.inference_mode()
def ablation(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """For each head of a layer, the change of the output without it: the divergence of what the model says, in bits, or
    where it says no words or classes, how far its last vectors move, as a share of their length."""
    subject, before = loaded.trace(request, deadline)
    site = before.site(request.stage, request.layer, request.part)
    before.attention(site)
    block = before.calls[site.stage][site.layer].index
    said, bits = answer(loaded, before)
    changes = []
    for head in range(site.heads):
        mute = AblatedHead(stage=site.stage, layer=block, part=site.part, head=head)
        after, _ = answer(loaded, trace(loaded.model, subject.batch, (*request.silence, mute), deadline))
        changes.append(divergence(said, after) if bits else float((after - said).norm() / said.norm()))
    return {"layer": site.layer, "changes": changes, "bits": bits}


def answer(loaded: LoadedModel, seen: Trace) -> tuple[Tensor, bool]:
    """Log-probabilities [places, choices] and True; or the last vectors and False."""
    head = loaded.language
    if head is not None:
        return head.score(seen.run.tokens[head.stage].pad().x[0, -PLACES:]).float().log_softmax(-1), True
    logits = seen.output.get("logits")
    if isinstance(logits, Tensor) and loaded.pixels is None:
        return logits[0].float().reshape(-1, logits.shape[-1]).log_softmax(-1), True
    return seen.run.tokens[list(seen.run.tokens)[-1]].pad().x[0].float(), False


def divergence(said: Tensor, after: Tensor) -> float:
    """Kullback and Leibler's, of the second from the first, the mean over places, in bits."""
    each = (said.exp() * (said - after)).sum(dim=-1)
    return float(each.mean()) / math.log(2)
