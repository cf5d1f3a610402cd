"""The published sizes of sound and video."""

from __future__ import annotations

from typing import Any

_SMALL = {
    **{"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768},
    **{"num_mel_bins": 64, "max_length": 128, "num_labels": 10},
}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ast-base": ("ASTForAudioClassification", "ASTConfig", {"num_labels": 527}),
    "ast-base-speech": ("ASTForAudioClassification", "ASTConfig", {"num_labels": 35, "max_length": 128}),
    "ast-small": ("ASTForAudioClassification", "ASTConfig", _SMALL),  # ours; the same class counts it
}
