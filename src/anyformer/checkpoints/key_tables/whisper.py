"""Whisper: Marian's names of the layers, without biases of the keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.checkpoints.key_table import LABELS, ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.key_tables.marian import SIDES, TARGET, WORDS, layers
from anyformer.checkpoints.names import Name, absent, by_names
from anyformer.recipes.whisper import WhisperConfig


def _shape(config: WhisperConfig, ours: Tensor) -> tuple[int, ...]:
    """Of a convolution over three frames."""
    return (ours.shape[0], ours.numel() // ours.shape[0] // 3, 3)


def _without_key_bias(side: str) -> dict[str, Any]:
    names = layers(side)
    parts = [f"{side}.blocks.{{i}}.{part}.key" for part in ("self", "cross")]
    return {**names, **{f"{ours}.bias": absent(f"{names[ours]}.bias") for ours in parts}}


NAMES = {
    "encoder.inputs.first.weight": Name("model.encoder.conv1.weight", _shape),
    "encoder.inputs.second.weight": Name("model.encoder.conv2.weight", _shape),
    "encoder.inputs.first.bias": "model.encoder.conv1.bias",
    "encoder.inputs.second.bias": "model.encoder.conv2.bias",
    **{f"{side}.inputs.positions": f"model.{side}.embed_positions" for side in ("encoder", "decoder")},
    **{f"{side}.final_norm": f"model.{side}.layer_norm" for side in ("encoder", "decoder")},
    **_without_key_bias("encoder"),
    **_without_key_bias("decoder"),
    "decoder.inputs.words": TARGET,
    "language.words": "proj_out",
    "classify.project": "projector",
    "classify.classes": "classifier",
}


def rename(config: WhisperConfig, name: str) -> str:
    return name if config.head == "language" else name.removeprefix("model.")


TABLE = KeyTable(
    family="whisper",
    model_type="whisper",
    architectures={
        "WhisperForConditionalGeneration": {"head": "language"},
        "WhisperModel": {"head": "base"},
        "WhisperForAudioClassification": {"head": "classify"},
    },
    fields=(
        *with_defaults(
            SIDES,
            encoder_layers=4,
            decoder_layers=4,
            d_model=384,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
            dropout=0.0,
        ),
        *with_defaults(
            WORDS,
            without=("max_length", "scale_embedding"),
            vocab_size=51865,
            pad_token_id=50256,
            decoder_start_token_id=50257,
            eos_token_id=50256,
        ),
        ConfigField("n_mels", "num_mel_bins", 80),
        ConfigField("source_length", "max_source_positions", 1500),
        ConfigField("max_length", "max_target_positions", 448),
        ConfigField("d_pool", "classifier_proj_size", 256),
        LABELS,
    ),
    **by_names("whisper", NAMES, aliases=((r"^(encoder|decoder)\.", r"model.\1."),)),
    required_values={"use_weighted_layer_sum": (False,), "apply_spec_augment": (False,)},
    # Vectors are never scaled whatever scale_embedding says; the rest is about training and about word times.
    ignored_fields=frozenset(
        "scale_embedding num_hidden_layers mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob"
        " mask_feature_length mask_feature_min_masks median_filter_width forced_decoder_ids".split()
    ),
    rename=rename,
)
