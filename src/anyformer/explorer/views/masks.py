"""Who may look at whom: the mask of a layer as the model itself makes it, and what padding changes."""

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
    """For every query and key 0 where one may look at the other, else the number of the part that forbids it; the
    weights under it; and how far padding moves what the real tokens become."""
    subject, trace = loaded.trace(request, deadline)
    site = trace.site(request.stage, request.layer, request.part)
    weights = pick(trace.weights(site), request.head)
    queries, keys = sides(loaded, subject, trace, site)
    parts = trace.mask(site).parts
    forbidden = _forbidden(parts, *weights.shape)
    made = downsample.tile(forbidden, request.top, request.left)
    made["weights"] = downsample.tile(weights, request.top, request.left)["cells"]
    made["queries"] = queries[made["top"] : made["top"] + downsample.SIDE]
    made["keys"] = keys[made["left"] : made["left"] + downsample.SIDE]
    made["parts"] = [
        {"says": says(part), "forbids": int((forbidden == number).sum())} for number, part in enumerate(parts, 1)
    ]
    made["moved"] = _moved(loaded, request, subject, trace, deadline) if request.padding else None
    return made


def says(part: Mask) -> str:
    """A mask in words."""
    if isinstance(part, Causal):
        return "no token sees the future"
    if isinstance(part, Window):
        return f"a window of {part.left} tokens back" + (f" and {part.right} ahead" if part.right else "")
    if isinstance(part, Padding):
        return "padding is not looked at"
    if isinstance(part, PositionMask):
        return says(part.inner)
    return f"{type(part).__name__} mask"


def _forbidden(parts: tuple[Mask, ...], queries: int, keys: int) -> Tensor:
    found = torch.zeros(queries, keys)
    for number, part in enumerate(parts, 1):
        found[(found == 0) & ~part.dense(queries, keys)[0, 0]] = number
    return found


def _moved(
    loaded: LoadedModel, request: ViewRequest, model_input: ModelInput, trace: Trace, deadline: Deadline
) -> float:
    """The largest change of a number of the real tokens' last vectors, as a share of the largest such number."""
    _, bare = loaded.trace(request.replace(padding=0), deadline)
    stage = next(name for name in model_input.words if name in bare.run.tokens)
    alone = bare.run.tokens[stage].pad().x[0]
    padded = trace.run.tokens[stage].pad().x[0]
    real = padded[-len(alone) :] if request.padding_left else padded[: len(alone)]
    return float((real - alone).abs().max() / alone.abs().max())
