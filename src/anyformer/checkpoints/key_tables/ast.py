"""AST. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    ENCODER,
    LABELS,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    strip_prefix,
    vectors,
    weight_and_bias,
)
from anyformer.checkpoints.key_tables.vit import aliases, patches, vit_layers
from anyformer.recipes.ast import ASTConfig

PREFIX = "audio_spectrogram_transformer"


def keys(config: ASTConfig) -> list[Key]:
    rows, columns = config.inputs.grid
    ours, theirs, width = "encoder.inputs", f"{PREFIX}.embeddings", config.d_model
    found = [
        vectors(f"{ours}.tokens.0.weight", f"{theirs}.cls_token", 1, width),
        vectors(f"{ours}.tokens.1.weight", f"{theirs}.distillation_token", 1, width),
        vectors(f"{ours}.positions.weight", f"{theirs}.position_embeddings", rows * columns + 2, width),
        *patches(theirs, (width, 1, config.patch_size, config.patch_size)),
        *vit_layers(config, f"{PREFIX}.encoder.layer"),
        *weight_and_bias("encoder.final_norm", f"{PREFIX}.layernorm"),
    ]
    if config.head == "base":
        return found
    answer = weight_and_bias("classify.classes", "classifier.dense") if config.n_labels else []
    return [*found, *weight_and_bias("classify.norm", "classifier.layernorm"), *answer]


def ignored_keys(config: ASTConfig) -> tuple[str, ...]:
    return (r"^classifier\.",) if config.head == "base" else ()


TABLE = KeyTable(
    family="ast",
    model_type="audio-spectrogram-transformer",
    architectures={"ASTModel": {"head": "base"}, "ASTForAudioClassification": {"head": "classify"}},
    fields=(
        *ENCODER,
        ConfigField("d_head", "head_dim", None),
        ConfigField("n_mels", "num_mel_bins", 128),
        ConfigField("n_frames", "max_length", 1024),
        ConfigField("patch_size", "patch_size", 16),
        ConfigField("mel_stride", "frequency_stride", 10),
        ConfigField("frame_stride", "time_stride", 10),
        ConfigField("qkv_bias", "qkv_bias", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=aliases(PREFIX, "embeddings|encoder|layers|layernorm"),
    ignored_keys=ignored_keys,
    rename=strip_prefix(f"{PREFIX}."),
)
