"""The attention mask of a layer, and the effect of padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.core.masks import Causal, Mask, Padding, PositionMask, Window
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel, ModelInput
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import Trace
from anyformer.explorer.views.heads import pick, sides


@torch.inference_mode()
def mask(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """For each query and key, 0 if attention is allowed, else the number of the mask that excludes it; the attention
    weights; and the change of the real tokens caused by padding."""
    model_input, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    weights = pick(trace.weights(site), request.head)
    queries, keys = sides(loaded, model_input, trace, site)
    parts = trace.mask(site).parts
    masked = _masked(parts, *weights.shape)
    made = downsample.tile(masked, request.top, request.left)
    made["weights"] = downsample.tile(weights, request.top, request.left)["cells"]
    made["queries"] = queries[made["top"] : made["top"] + downsample.SIDE]
    made["keys"] = keys[made["left"] : made["left"] + downsample.SIDE]
    made["parts"] = [
        {"label": label(part), "masked": int((masked == number).sum())} for number, part in enumerate(parts, 1)
    ]
    made["moved"] = _moved(loaded, request, model_input, trace, deadline) if request.padding else None
    return made


def label(part: Mask) -> str:
    """A short description of a mask."""
    if isinstance(part, Causal):
        return "causal: no attention to later tokens"
    if isinstance(part, Window):
        return f"window: {part.left} tokens before" + (f" and {part.right} after" if part.right else "")
    if isinstance(part, Padding):
        return "padding: no attention to padding tokens"
    if isinstance(part, PositionMask):
        return label(part.inner)
    return f"{type(part).__name__} mask"


def _masked(parts: tuple[Mask, ...], queries: int, keys: int) -> Tensor:
    found = torch.zeros(queries, keys)
    for number, part in enumerate(parts, 1):
        found[(found == 0) & ~part.dense(queries, keys)[0, 0]] = number
    return found


def _moved(
    loaded: LoadedModel, request: ViewRequest, model_input: ModelInput, trace: Trace, deadline: Deadline
) -> float:
    """The largest change of the last hidden states of real tokens, relative to their largest absolute value."""
    _, bare = loaded.trace(request.replace(padding=0), deadline)
    stage = next(name for name in model_input.words if name in bare.run.tokens)
    alone = bare.run.tokens[stage].pad().x[0]
    padded = trace.run.tokens[stage].pad().x[0]
    real = padded[-len(alone) :] if request.padding_left else padded[: len(alone)]
    return float((real - alone).abs().max() / alone.abs().max())
