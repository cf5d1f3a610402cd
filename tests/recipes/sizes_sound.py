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
_MINI = {"vocab_size": 256, "pad_token_id": 250, "max_source_positions": 100, "max_target_positions": 64}
_WHISPER = {
    "whisper-mini": _whisper(4, 192, 4, **_MINI),
    "whisper-tiny": _whisper(4, 384, 6),
    "whisper-base": _whisper(6, 512, 8),
    "whisper-small": _whisper(12, 768, 12),
    "whisper-medium": _whisper(24, 1024, 16),
    "whisper-large": _whisper(32, 1280, 20),
    "whisper-large-v3": _whisper(32, 1280, 20, **_V3),
    "whisper-large-v3-turbo": _whisper(32, 1280, 20, 4, **_V3),
}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_CLIPS = "TimesformerForVideoClassification", "TimesformerConfig"
_VIDEOS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "videomae-base": ("VideoMAEForVideoClassification", "VideoMAEConfig", {"num_labels": 400}),
    "videomae-large": ("VideoMAEForVideoClassification", "VideoMAEConfig", {**_LARGE, "num_labels": 400}),
    "videomae-base-pretraining": ("VideoMAEForPreTraining", "VideoMAEConfig", {"use_mean_pooling": False}),
    "timesformer-base": (*_CLIPS, {"num_labels": 400}),
    "timesformer-base-joint": (*_CLIPS, {"num_labels": 400, "attention_type": "joint_space_time"}),
    "timesformer-high-resolution": (*_CLIPS, {"num_labels": 400, "num_frames": 16, "image_size": 448}),
}
# The keys of Whisper and VideoMAE have no bias; ours have one that makes no difference.
BESIDES: dict[str, int] = {
    **{"videomae-base": 12 * 768, "videomae-large": 24 * 1024, "videomae-base-pretraining": 12 * 768 + 4 * 384},
    **{
        name: (size["encoder_layers"] + 2 * size["decoder_layers"]) * size["d_model"] for name, size in _WHISPER.items()
    },
}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ast-base": ("ASTForAudioClassification", "ASTConfig", {"num_labels": 527}),
    "ast-base-speech": ("ASTForAudioClassification", "ASTConfig", {"num_labels": 35, "max_length": 128}),
    "ast-small": ("ASTForAudioClassification", "ASTConfig", _SMALL),  # ours; the same class counts it
    **_VIDEOS,
    **{name: ("WhisperForConditionalGeneration", "WhisperConfig", size) for name, size in _WHISPER.items()},
}


def _linear(d_in: int, d_out: int) -> int:
    return d_in * d_out + d_out


def _attends(d_query: int, d_context: int, d_qk: int) -> int:
    return _linear(d_query, d_qk) + 2 * _linear(d_context, d_qk) + _linear(d_qk, d_query)


def _feeds(width: int, hidden: int) -> int:
    return _linear(width, hidden) + _linear(hidden, width)


def _perceiver(inputs: int, d_inputs: int) -> int:
    """Inputs; 32 latents of 192; they look at the inputs, four times at themselves, and are looked at by one query."""
    norms = 2 * 192
    reads = _attends(192, d_inputs, d_inputs) + 2 * norms + 2 * d_inputs + _feeds(192, 192)
    thinks = _attends(192, 192, 192) + 2 * norms + _feeds(192, 384)
    answers = 192 + _attends(192, 192, 192) + 3 * norms + _feeds(192, 192) + _linear(192, 10)
    return inputs + 32 * 192 + reads + 4 * thinks + answers


_SET_BLOCK = _attends(128, 128, 128) + _feeds(128, 256) + 4 * 128
_TABLE_BLOCK = _attends(192, 192, 192) + 2 * _linear(192, 256) + _linear(256, 192) + 2 * 192

# Families and sizes that have no class at Hugging Face: the sum of what they are made of.
COUNTED: dict[str, int] = {
    "perceiver-sound": _perceiver(_linear(16, 64) + 16 * 32 * 64, 128),  # patches of 4 x 4, and their places
    "perceiver-set": _perceiver(_linear(3, 64), 64),
    "set-transformer-small": _linear(3, 128) + 2 * _SET_BLOCK + 128 + _SET_BLOCK + _linear(128, 40),
    # a class token, a direction and a start for each column; all blocks but the first normalize twice
    "ft-transformer-base": 17 * 192 + 3 * _TABLE_BLOCK + 2 * 2 * 192 + 2 * 192 + _linear(192, 2),
}
