"""The published sizes of sound and video."""

from __future__ import annotations

from typing import Any

_SMALL = {
    **{"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768},
    **{"num_mel_bins": 64, "max_length": 128, "num_labels": 10},
}


def _whisper(n_layers: int, width: int, heads: int, decoder_layers: int | None = None, **more: Any) -> dict[str, Any]:
    sides = {"layers": n_layers, "attention_heads": heads, "ffn_dim": 4 * width}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    return {**both, "d_model": width, "decoder_layers": decoder_layers or n_layers, **more}


_V3 = {"vocab_size": 51866, "num_mel_bins": 128}
_WHISPER = {
    "whisper-tiny": _whisper(4, 384, 6),
    "whisper-base": _whisper(6, 512, 8),
    "whisper-small": _whisper(12, 768, 12),
    "whisper-medium": _whisper(24, 1024, 16),
    "whisper-large": _whisper(32, 1280, 20),
    "whisper-large-v3": _whisper(32, 1280, 20, **_V3),
    "whisper-large-v3-turbo": _whisper(32, 1280, 20, 4, **_V3),
}
# Its keys have no bias; ours have one that makes no difference.
BESIDES: dict[str, int] = {
    name: (size["encoder_layers"] + 2 * size["decoder_layers"]) * size["d_model"] for name, size in _WHISPER.items()
}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ast-base": ("ASTForAudioClassification", "ASTConfig", {"num_labels": 527}),
    "ast-base-speech": ("ASTForAudioClassification", "ASTConfig", {"num_labels": 35, "max_length": 128}),
    "ast-small": ("ASTForAudioClassification", "ASTConfig", _SMALL),  # ours; the same class counts it
    **{name: ("WhisperForConditionalGeneration", "WhisperConfig", size) for name, size in _WHISPER.items()},
}
