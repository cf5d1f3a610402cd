"""AST. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

import re

from anyformer.recipes.ast import AST
from anyformer.weights.table import (
    LABELS,
    PROBLEM,
    Field,
    Key,
    Table,
    both,
    each_layer,
    read_activation,
    write_activation,
)
from anyformer.weights.tables.vit import LAYER_ALIASES, vit_layer

PREFIX = "audio_spectrogram_transformer"


def keys(config: AST) -> list[Key]:
    rows, columns = config.inputs.grid
    embeddings, width = f"{PREFIX}.embeddings", config.d_model
    projection = f"{embeddings}.patch_embeddings.projection"
    patch = (width, 1, config.patch_size, config.patch_size)
    return [
        Key("encoder.inputs.tokens.0.weight", f"{embeddings}.cls_token", "reshape", (1, 1, width)),
        Key("encoder.inputs.tokens.1.weight", f"{embeddings}.distillation_token", "reshape", (1, 1, width)),
        Key(
            "encoder.inputs.positions.weight",
            f"{embeddings}.position_embeddings",
            "reshape",
            (1, rows * columns + 2, width),
        ),
        Key("encoder.inputs.patches.weight", f"{projection}.weight", "reshape", patch),
        Key("encoder.inputs.patches.bias", f"{projection}.bias"),
        *each_layer(config.n_layers, vit_layer("encoder.blocks.{i}", f"{PREFIX}.encoder.layer.{{i}}", config.qkv_bias)),
        *both("encoder.final_norm", f"{PREFIX}.layernorm"),
        *_head(config),
    ]


def _head(config: AST) -> list[Key]:
    if config.head == "base":
        return []
    return [
        *both("classify.norm", "classifier.layernorm"),
        *(both("classify.classes", "classifier.dense") if config.n_labels else []),
    ]


def leftovers(config: AST) -> tuple[str, ...]:
    return (r"^classifier\.",) if config.head == "base" else ()


def rename(config: AST, name: str) -> str:
    return re.sub(rf"^{PREFIX}\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="ast",
    model_type="audio-spectrogram-transformer",
    architectures={"ASTModel": {"head": "base"}, "ASTForAudioClassification": {"head": "classify"}},
    fields=(
        Field("n_layers", "num_hidden_layers", 12),
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_head", "head_dim", None),
        Field("d_hidden", "intermediate_size", 3072),
        Field("n_mels", "num_mel_bins", 128),
        Field("n_frames", "max_length", 1024),
        Field("patch_size", "patch_size", 16),
        Field("mel_stride", "frequency_stride", 10),
        Field("frame_stride", "time_stride", 10),
        Field("activation", "hidden_act", "gelu", read_activation, write_activation),
        Field("norm_eps", "layer_norm_eps", 1e-12),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
        Field("qkv_bias", "qkv_bias", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=(
        (r"^(embeddings|encoder|layers|layernorm)\.", rf"{PREFIX}.\1."),
        (rf"^{PREFIX}\.layers\.", f"{PREFIX}.encoder.layer."),
        *LAYER_ALIASES,
    ),
    leftovers=leftovers,
    rename=rename,
)
