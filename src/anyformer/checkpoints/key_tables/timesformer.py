"""TimeSformer: ViT's names, with queries, keys and values in one matrix as ours are."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    ENCODER,
    LABELS,
    PICTURES,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    each_layer,
    strip_prefix,
    vectors,
    weight_and_bias,
    weights_and_biases,
    with_defaults,
)
from anyformer.checkpoints.key_tables.vit import classes, vit_inputs
from anyformer.recipes.timesformer import TimeSformerConfig

_ATTENDS = {"divided": "divided_space_time", "joint": "joint_space_time", "space": "space_only"}


def _attention(config: TimeSformerConfig, ours: str, theirs: str) -> list[Key]:
    qkv = weight_and_bias(f"{ours}.qkv", f"{theirs}.attention.qkv")
    return [*(qkv if config.qkv_bias else qkv[:1]), *weight_and_bias(f"{ours}.out", f"{theirs}.output.dense")]


def _layer(config: TimeSformerConfig) -> list[Key]:
    ours, theirs = "encoder.blocks.{i}", "timesformer.encoder.layer.{i}"
    looks = f"{ours}.{'space' if config.attention_type == 'divided' else 'self'}"
    network = {"norm": "layernorm_after", "up": "intermediate.dense", "down": "output.dense"}
    rows = [
        *_attention(config, looks, f"{theirs}.attention"),
        *weight_and_bias(f"{looks}.norm", f"{theirs}.layernorm_before"),
        *weights_and_biases(f"{ours}.feedforward", theirs, network),
    ]
    if config.attention_type == "divided":
        rows += _attention(config, f"{ours}.time", f"{theirs}.temporal_attention")
        rows += weights_and_biases(f"{ours}.time", theirs, {"norm": "temporal_layernorm", "project": "temporal_dense"})
    return rows


def keys(config: TimeSformerConfig) -> list[Key]:
    theirs = "timesformer.embeddings"
    frames, rows, columns = config.inputs.grid
    found = [
        *vit_inputs(config, config.patch_size, rows * columns, theirs),
        *each_layer(config.n_layers, _layer(config)),
        *weight_and_bias("encoder.final_norm", "timesformer.layernorm"),
    ]
    if config.attention_type != "space":
        found.append(vectors("encoder.inputs.times.weight", f"{theirs}.time_embeddings", frames, config.d_model))
    return [*found, *(classes(config) if config.head == "classify" else [])]


TABLE = KeyTable(
    family="timesformer",
    model_type="timesformer",
    architectures={"TimesformerForVideoClassification": {"head": "classify"}, "TimesformerModel": {"head": "base"}},
    fields=(
        *with_defaults(ENCODER, layer_norm_eps=1e-6),
        *PICTURES,
        ConfigField("n_frames", "num_frames", 8),
        ConfigField(
            "attention_type",
            "attention_type",
            "divided_space_time",
            {theirs: ours for ours, theirs in _ATTENDS.items()}.__getitem__,
            _ATTENDS.__getitem__,
        ),
        ConfigField("drop_path", "drop_path_rate", 0, float),
        ConfigField("qkv_bias", "qkv_bias", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=((r"^(embeddings|encoder|layernorm)\.", r"timesformer.\1."),),
    ignored_keys=lambda config: (r"^classifier\.",) if config.head == "base" else (),
    rename=strip_prefix("timesformer."),
)
