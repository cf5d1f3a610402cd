"""The oracles of sound and video; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.checkpoints.cases import Batch, Case, ids, ragged

HOMES = {
    **{"AST": "audio_spectrogram_transformer", "Whisper": "whisper"},
    **{"VideoMAE": "videomae", "Timesformer": "timesformer"},
}

_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "AST": (
        "ASTConfig",
        {**_TEXT, "patch_size": 8, "frequency_stride": 5, "time_stride": 6, "max_length": 40, "num_mel_bins": 24},
    ),
    "VideoMAE": (
        "VideoMAEConfig",
        {
            **_TEXT,
            **{"image_size": 16, "patch_size": 8, "num_frames": 4, "tubelet_size": 2},
            **{"decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2},
            "decoder_intermediate_size": 24,
        },
    ),
    "Timesformer": ("TimesformerConfig", {**_TEXT, "image_size": 16, "patch_size": 8, "num_frames": 3}),
    "Whisper": (
        "WhisperConfig",
        {
            **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "max_source_positions": 20},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_target_positions": 24},
            **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "num_mel_bins": 10, "vocab_size": 60},
            **{"pad_token_id": 50, "bos_token_id": 50, "eos_token_id": 50, "decoder_start_token_id": 51},
            **{"begin_suppress_tokens": [5, 50], "classifier_proj_size": 12},
        },
    ),
}

ARCHITECTURES = (
    *("ASTModel", "ASTForAudioClassification"),
    *("VideoMAEModel", "VideoMAEForVideoClassification", "VideoMAEForPreTraining"),
    *("TimesformerModel", "TimesformerForVideoClassification"),
    *("WhisperForConditionalGeneration", "WhisperModel", "WhisperForAudioClassification"),
)


def sound_case(architecture: str) -> Case:
    return Case({"input_values": torch.randn(2, 40, 24)}, {})


def speech_case(architecture: str) -> Case:
    features = {"input_features": torch.randn(4, 10, 40)}
    if architecture == "WhisperForAudioClassification":
        return Case(features, {})
    target = ragged(4, 7)
    batch = {**features, "decoder_input_ids": ids(4, 7), "decoder_attention_mask": target}
    return Case(batch, {"": target, "cross": target})


def video_case(architecture: str) -> Case:
    if architecture.startswith("Timesformer"):
        return Case({"pixel_values": torch.randn(2, 3, 3, 16, 16)}, {})
    pixels = {"pixel_values": torch.randn(2, 4, 3, 16, 16)}
    if architecture != "VideoMAEForPreTraining":
        return Case(pixels, {})
    return Case({**pixels, "bool_masked_pos": hidden(8)}, {})


def hidden(n_tokens: int) -> torch.Tensor:
    """Three quarters of each row, others in each."""
    ranks = torch.rand(2, n_tokens).argsort(dim=1).argsort(dim=1)
    return ranks < 3 * n_tokens // 4


CASES: dict[str, Callable[[str], Case]] = {
    **{"AST": sound_case, "Whisper": speech_case},
    **{"VideoMAE": video_case, "Timesformer": video_case},
}


def _classes(batch: Batch) -> Batch:
    return {"labels": torch.tensor([0, 1])}


def _targets(batch: Batch) -> Batch:
    return {"labels": batch["decoder_input_ids"].masked_fill(batch["decoder_attention_mask"] == 0, -100)}


LABELS: dict[str, Callable[[Batch], Batch]] = {
    "ASTForAudioClassification": _classes,
    "VideoMAEForVideoClassification": _classes,
    "TimesformerForVideoClassification": _classes,
    "WhisperForConditionalGeneration": _targets,
    "WhisperForAudioClassification": lambda batch: {"labels": torch.tensor([0, 1, 1, 0])},
}

# For the sweep over config fields: values of fields that these configs alone have, and what must change beside them.
VALUES: dict[str, Any] = {
    **{"frequency_stride": 4, "time_stride": 3},
    **{"max_source_positions": 24, "max_target_positions": 30, "suppress_tokens": [1, 2]},
    **{"begin_suppress_tokens": [3], "attention_type": "joint_space_time", "num_frames": 6, "tubelet_size": 1},
}
# Further values of fields whose values differ in kind.
MORE: list[tuple[str, str, Any]] = [("TimesformerForVideoClassification", "attention_type", "space_only")]
BESIDE: dict[tuple[str, str], dict[str, Any]] = {}


def fit(batch: Batch, config: Any) -> Batch:
    """What of a batch must have other sizes under this config."""
    if "input_values" in batch:
        return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins)}
    if "num_frames" in config.to_dict() and "pixel_values" in batch:
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        found = {"pixel_values": torch.randn(2, config.num_frames, config.num_channels, size, size)}
        if "bool_masked_pos" in batch:
            cells = (size // config.patch_size) ** 2
            found["bool_masked_pos"] = hidden(cells * config.num_frames // config.tubelet_size)
        return found
    if "input_features" in batch:
        rows = len(batch["input_features"])
        return {"input_features": torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions)}
    return {}
