"""TimeSformer: ViT's names, with queries, keys and values in one matrix as ours are."""

from __future__ import annotations

import re

from anyformer.recipes.timesformer import TimeSformer
from anyformer.weights.table import (
    LABELS,
    PROBLEM,
    Field,
    Key,
    Table,
    both,
    each_layer,
    pair,
    read_activation,
    unpair,
    write_activation,
)

_ATTENDS = {"divided": "divided_space_time", "joint": "joint_space_time", "space": "space_only"}


def _attention(config: TimeSformer, ours: str, theirs: str) -> list[Key]:
    qkv = both(f"{ours}.qkv", f"{theirs}.attention.qkv")
    return [*(qkv if config.qkv_bias else qkv[:1]), *both(f"{ours}.out", f"{theirs}.output.dense")]


def _layer(config: TimeSformer) -> list[Key]:
    ours, theirs = "encoder.blocks.{i}", "timesformer.encoder.layer.{i}"
    looks = f"{ours}.{'space' if config.attends == 'divided' else 'self'}"
    rows = [
        *_attention(config, looks, f"{theirs}.attention"),
        *both(f"{looks}.norm", f"{theirs}.layernorm_before"),
        *both(f"{ours}.feedforward.norm", f"{theirs}.layernorm_after"),
        *both(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense"),
        *both(f"{ours}.feedforward.down", f"{theirs}.output.dense"),
    ]
    if config.attends == "divided":
        rows += _attention(config, f"{ours}.time", f"{theirs}.temporal_attention")
        rows += both(f"{ours}.time.norm", f"{theirs}.temporal_layernorm")
        rows += both(f"{ours}.time.project", f"{theirs}.temporal_dense")
    return rows


def keys(config: TimeSformer) -> list[Key]:
    embeddings, width = "timesformer.embeddings", config.d_model
    frames, rows, columns = config.inputs.grid
    projection = f"{embeddings}.patch_embeddings.projection"
    patch = (width, config.n_channels, *config.patch_size)
    found = [
        Key("encoder.inputs.class_token.weight", f"{embeddings}.cls_token", "reshape", (1, 1, width)),
        Key(
            "encoder.inputs.positions.weight",
            f"{embeddings}.position_embeddings",
            "reshape",
            (1, rows * columns + 1, width),
        ),
        Key("encoder.inputs.patches.weight", f"{projection}.weight", "reshape", patch),
        Key("encoder.inputs.patches.bias", f"{projection}.bias"),
        *each_layer(config.n_layers, _layer(config)),
        *both("encoder.final_norm", "timesformer.layernorm"),
    ]
    if config.attends != "space":
        found.append(Key("encoder.inputs.times.weight", f"{embeddings}.time_embeddings", "reshape", (1, frames, width)))
    return [*found, *(both("classify.classes", "classifier") if config.head == "classify" and config.n_labels else [])]


def rename(config: TimeSformer, name: str) -> str:
    return re.sub(r"^timesformer\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="timesformer",
    model_type="timesformer",
    architectures={"TimesformerForVideoClassification": {"head": "classify"}, "TimesformerModel": {"head": "base"}},
    fields=(
        Field("n_layers", "num_hidden_layers", 12),
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_hidden", "intermediate_size", 3072),
        Field("n_frames", "num_frames", 8),
        Field("image_size", "image_size", 224, pair, unpair),
        Field("patch_size", "patch_size", 16, pair, unpair),
        Field("n_channels", "num_channels", 3),
        Field(
            "attends",
            "attention_type",
            "divided_space_time",
            {theirs: ours for ours, theirs in _ATTENDS.items()}.__getitem__,
            _ATTENDS.__getitem__,
        ),
        Field("activation", "hidden_act", "gelu", read_activation, write_activation),
        Field("norm_eps", "layer_norm_eps", 1e-6),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
        Field("drop_path", "drop_path_rate", 0, float),
        Field("qkv_bias", "qkv_bias", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=((r"^(embeddings|encoder|layernorm)\.", r"timesformer.\1."),),
    leftovers=lambda config: (r"^classifier\.",) if config.head == "base" else (),
    rename=rename,
)
