"""The oracles of sound and video; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .cases import Batch, Case

HOMES = {"AST": "audio_spectrogram_transformer"}

_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "AST": (
        "ASTConfig",
        {**_TEXT, "patch_size": 8, "frequency_stride": 5, "time_stride": 6, "max_length": 40, "num_mel_bins": 24},
    ),
}

ARCHITECTURES = ("ASTModel", "ASTForAudioClassification")


def sound_case(architecture: str) -> Case:
    return Case({"input_values": torch.randn(2, 40, 24)}, {})


CASES: dict[str, Callable[[str], Case]] = {"AST": sound_case}


def _classes(batch: Batch) -> Batch:
    return {"labels": torch.tensor([0, 1])}


LABELS: dict[str, Callable[[Batch], Batch]] = {"ASTForAudioClassification": _classes}

# For the sweep over config fields: values of fields that these configs alone have, and what must change beside them.
VALUES: dict[str, Any] = {"frequency_stride": 4, "time_stride": 3}
BESIDE: dict[tuple[str, str], dict[str, Any]] = {}


def fit(batch: Batch, config: Any) -> Batch:
    """What of a batch must have other sizes under this config."""
    if "input_values" in batch:
        return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins)}
    return {}
