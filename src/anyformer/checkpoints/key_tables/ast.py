"""AST. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ENCODER, LABELS, PROBLEM, ConfigField, KeyTable
from anyformer.checkpoints.key_tables.vit import aliases, body, inputs
from anyformer.checkpoints.names import batch_of_one, by_names

PREFIX = "audio_spectrogram_transformer"


NAMES = {
    **body(PREFIX),
    **inputs(f"{PREFIX}.embeddings", lambda config, ours: (config.d_model, 1, config.patch_size, config.patch_size)),
    "encoder.inputs.tokens.0.weight": batch_of_one(f"{PREFIX}.embeddings.cls_token"),
    "encoder.inputs.tokens.1.weight": batch_of_one(f"{PREFIX}.embeddings.distillation_token"),
    "classify.norm": "classifier.layernorm",
    "classify.classes": "classifier.dense",
}

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
    **by_names("ast", NAMES, prefix=PREFIX, aliases=aliases(PREFIX, "embeddings|encoder|layers|layernorm")),
)
