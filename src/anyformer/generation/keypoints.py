"""Keypoint prediction, autoregressive or in parallel, depending on the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.forward_context import Output

if TYPE_CHECKING:
    from anyformer.model import Model


def predict_keypoints(model: Model, pixel_values: Tensor) -> Output:
    """Return the output of `model(pixel_values=…)`. An autoregressive model is given the previous keypoints one by one,
    with a key/value cache."""
    settings = model.config.to_json()
    if not settings.get("autoregressive"):
        return model(pixel_values=pixel_values)
    state, found = Cache(), pixel_values.new_zeros(len(pixel_values), 0, 2, dtype=torch.float32)
    for _ in range(settings["n_keypoints"]):
        step: Any = model(pixel_values=pixel_values, places=found, past_key_values=state)
        found = torch.cat([found, step.keypoints.float()], dim=1)
    return Output(keypoints=found)
