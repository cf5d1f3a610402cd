"""Whisper: Marian's names of the layers, without biases of the keys."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    LABELS,
    ConfigField,
    Key,
    KeyTable,
    each_layer,
    lm_head_keys,
    weight_and_bias,
    with_defaults,
    without_key_bias,
)
from anyformer.checkpoints.key_tables.marian import SIDES, TARGET, WORDS, layer
from anyformer.recipes.whisper import WhisperConfig


def _side(side: str, n_layers: int) -> list[Key]:
    return [
        Key(f"{side}.inputs.positions.weight", f"model.{side}.embed_positions.weight"),
        *each_layer(n_layers, without_key_bias(layer(side))),
        *weight_and_bias(f"{side}.final_norm", f"model.{side}.layer_norm"),
    ]


def keys(config: WhisperConfig) -> list[Key]:
    encoder, width = "model.encoder", config.d_model
    rows = [
        Key("encoder.inputs.first.weight", f"{encoder}.conv1.weight", "reshape", (width, config.n_mels, 3)),
        Key("encoder.inputs.first.bias", f"{encoder}.conv1.bias"),
        Key("encoder.inputs.second.weight", f"{encoder}.conv2.weight", "reshape", (width, width, 3)),
        Key("encoder.inputs.second.bias", f"{encoder}.conv2.bias"),
        *_side("encoder", config.n_layers),
    ]
    if config.head == "classify":
        return [
            *rows,
            *weight_and_bias("classify.project", "projector"),
            *weight_and_bias("classify.classes", "classifier"),
        ]
    words = [Key("decoder.inputs.words.weight", TARGET)]
    if config.head == "language":
        words = lm_head_keys(config.tied, TARGET, "proj_out.weight")
    return [*rows, *words, *_side("decoder", config.decoder_layers)]


def ignored_keys(config: WhisperConfig) -> tuple[str, ...]:
    if config.head == "classify":
        return (r"^model\.decoder\.", r"^proj_out\.")
    return (r"^projector\.", r"^classifier\.", *((r"^proj_out\.",) if config.head == "base" else ()))


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
    keys=keys,
    required_values={"use_weighted_layer_sum": (False,), "apply_spec_augment": (False,)},
    # Vectors are never scaled whatever scale_embedding says; the rest is about training and about word times.
    ignored_fields=frozenset(
        "scale_embedding num_hidden_layers mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob"
        " mask_feature_length mask_feature_min_masks median_filter_width forced_decoder_ids".split()
    ),
    aliases=((r"^(encoder|decoder)\.", r"model.\1."),),
    ignored_keys=ignored_keys,
    rename=rename,
)
