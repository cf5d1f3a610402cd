"""AST. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

from anyformer.recipes.ast import AST
from anyformer.weights.table import ENCODER, LABELS, PROBLEM, Field, Key, Table, bare, both, vectors
from anyformer.weights.tables.vit import aliases, patches, vit_layers

PREFIX = "audio_spectrogram_transformer"


def keys(config: AST) -> list[Key]:
    rows, columns = config.inputs.grid
    ours, theirs, width = "encoder.inputs", f"{PREFIX}.embeddings", config.d_model
    found = [
        vectors(f"{ours}.tokens.0.weight", f"{theirs}.cls_token", 1, width),
        vectors(f"{ours}.tokens.1.weight", f"{theirs}.distillation_token", 1, width),
        vectors(f"{ours}.positions.weight", f"{theirs}.position_embeddings", rows * columns + 2, width),
        *patches(theirs, (width, 1, config.patch_size, config.patch_size)),
        *vit_layers(config, f"{PREFIX}.encoder.layer"),
        *both("encoder.final_norm", f"{PREFIX}.layernorm"),
    ]
    if config.head == "base":
        return found
    answer = both("classify.classes", "classifier.dense") if config.n_labels else []
    return [*found, *both("classify.norm", "classifier.layernorm"), *answer]


def leftovers(config: AST) -> tuple[str, ...]:
    return (r"^classifier\.",) if config.head == "base" else ()


TABLE = Table(
    family="ast",
    model_type="audio-spectrogram-transformer",
    architectures={"ASTModel": {"head": "base"}, "ASTForAudioClassification": {"head": "classify"}},
    fields=(
        *ENCODER,
        Field("d_head", "head_dim", None),
        Field("n_mels", "num_mel_bins", 128),
        Field("n_frames", "max_length", 1024),
        Field("patch_size", "patch_size", 16),
        Field("mel_stride", "frequency_stride", 10),
        Field("frame_stride", "time_stride", 10),
        Field("qkv_bias", "qkv_bias", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=aliases(PREFIX, "embeddings|encoder|layers|layernorm"),
    leftovers=leftovers,
    rename=bare(f"{PREFIX}."),
)
