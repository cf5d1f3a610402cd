"""Classifier-free guidance of a text (Sanchez et al. 2023): the scores move away from those after another prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.errors import InputError
from anyformer.generation.engine import decode_step, prefill
from anyformer.generation.logits_processors import repeat_to
from anyformer.generation.requests import Request

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model


class Guidance:
    """Logits processor: log-probabilities scale · (given the prompt) + (1 - scale) · (given the negative prompt)."""

    def __init__(self, model: Model, scale: float, negative: dict[str, Tensor] | None) -> None:
        self.model, self.scale, self.negative = model, scale, negative
        self.state: Cache | None = None

    def __call__(self, scores: Tensor, history: Tensor) -> Tensor:
        if self.state is not None:
            other = decode_step(self.model, self.state, history[:, -1:])
        else:  # by default the negative prompt is the last token of the prompt
            batch = self.negative or {"input_ids": history[:, -1:]}
            batch = {name: repeat_to(value, len(scores)) for name, value in batch.items()}
            self.state, other = prefill(self.model, batch, None)
        given, other = (x.to(scores.dtype).log_softmax(dim=-1) for x in (scores, other))
        return self.scale * (given - other) + other


def make_guidance(model: Model, request: Request, given: Mapping[str, Any]) -> Guidance:
    """Return the processor for `guidance_scale`, `negative_prompt_ids` and `negative_prompt_attention_mask`."""
    if request.has_source:
        raise InputError("guidance_scale is for decoders; an encoder-decoder takes logits_processor instead.")
    ids, mask = given.get("negative_prompt_ids"), given.get("negative_prompt_attention_mask")
    if ids is None and request.prompt.shape[1] == 0:
        raise InputError("guidance_scale with inputs_embeds needs negative_prompt_ids.")
    rows = len(request.prompt)
    if ids is not None and (not isinstance(ids, Tensor) or ids.dim() != 2 or not len(ids) or rows % len(ids)):
        raise InputError(f"negative_prompt_ids must be a tensor of shape [{rows}, tokens], one row per prompt.")
    if mask is not None and (ids is None or not isinstance(mask, Tensor) or mask.shape != ids.shape):
        raise InputError("negative_prompt_attention_mask must be a tensor of the same shape as negative_prompt_ids.")
    batch = {"input_ids": ids, "attention_mask": mask}
    negative = None if ids is None else {name: value for name, value in batch.items() if value is not None}
    return Guidance(model, request.plan.guidance_scale, negative)
