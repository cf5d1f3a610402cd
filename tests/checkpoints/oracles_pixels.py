"""The oracle of the decoder whose words are colors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.checkpoints.cases import Batch, Case, ids

HOMES = {"ImageGPT": "imagegpt"}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "ImageGPT": ("ImageGPTConfig", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 61, "n_positions": 24}),
}
ARCHITECTURES = ("ImageGPTForCausalImageModeling", "ImageGPTForImageClassification", "ImageGPTModel")


def imagegpt_case() -> Case:
    """Images have no padding: the mean of the tokens is over all of them."""
    return Case({"input_ids": ids(4, 9), "attention_mask": torch.ones(4, 9, dtype=torch.long)}, {})


LABELS: dict[str, Callable[[Batch], Batch]] = {
    "ImageGPTForCausalImageModeling": lambda b: {"labels": b["input_ids"]},
    "ImageGPTForImageClassification": lambda b: {"labels": torch.tensor([0, 1, 1, 0])},
}
