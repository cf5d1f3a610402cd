"""TimeSformer: ViT's names, with queries, keys and values in one matrix as ours are."""

from __future__ import annotations

from anyformer.recipes.timesformer import TimeSformer
from anyformer.weights.table import (
    ENCODER,
    LABELS,
    PICTURES,
    PROBLEM,
    Field,
    Key,
    Table,
    assume,
    bare,
    both,
    each_layer,
    named,
    vectors,
)
from anyformer.weights.tables.vit import classes, vit_inputs

_ATTENDS = {"divided": "divided_space_time", "joint": "joint_space_time", "space": "space_only"}


def _attention(config: TimeSformer, ours: str, theirs: str) -> list[Key]:
    qkv = both(f"{ours}.qkv", f"{theirs}.attention.qkv")
    return [*(qkv if config.qkv_bias else qkv[:1]), *both(f"{ours}.out", f"{theirs}.output.dense")]


def _layer(config: TimeSformer) -> list[Key]:
    ours, theirs = "encoder.blocks.{i}", "timesformer.encoder.layer.{i}"
    looks = f"{ours}.{'space' if config.attends == 'divided' else 'self'}"
    network = {"norm": "layernorm_after", "up": "intermediate.dense", "down": "output.dense"}
    rows = [
        *_attention(config, looks, f"{theirs}.attention"),
        *both(f"{looks}.norm", f"{theirs}.layernorm_before"),
        *named(f"{ours}.feedforward", theirs, network),
    ]
    if config.attends == "divided":
        rows += _attention(config, f"{ours}.time", f"{theirs}.temporal_attention")
        rows += named(f"{ours}.time", theirs, {"norm": "temporal_layernorm", "project": "temporal_dense"})
    return rows


def keys(config: TimeSformer) -> list[Key]:
    theirs = "timesformer.embeddings"
    frames, rows, columns = config.inputs.grid
    found = [
        *vit_inputs(config, config.patch_size, rows * columns, theirs),
        *each_layer(config.n_layers, _layer(config)),
        *both("encoder.final_norm", "timesformer.layernorm"),
    ]
    if config.attends != "space":
        found.append(vectors("encoder.inputs.times.weight", f"{theirs}.time_embeddings", frames, config.d_model))
    return [*found, *(classes(config) if config.head == "classify" else [])]


TABLE = Table(
    family="timesformer",
    model_type="timesformer",
    architectures={"TimesformerForVideoClassification": {"head": "classify"}, "TimesformerModel": {"head": "base"}},
    fields=(
        *assume(ENCODER, layer_norm_eps=1e-6),
        *PICTURES,
        Field("n_frames", "num_frames", 8),
        Field(
            "attends",
            "attention_type",
            "divided_space_time",
            {theirs: ours for ours, theirs in _ATTENDS.items()}.__getitem__,
            _ATTENDS.__getitem__,
        ),
        Field("drop_path", "drop_path_rate", 0, float),
        Field("qkv_bias", "qkv_bias", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=((r"^(embeddings|encoder|layernorm)\.", r"timesformer.\1."),),
    leftovers=lambda config: (r"^classifier\.",) if config.head == "base" else (),
    rename=bare("timesformer."),
)
