"""TimeSformer: ViT's names, with queries, keys and values in one matrix as ours are."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ENCODER, LABELS, PICTURES, PROBLEM, ConfigField, KeyTable, with_defaults
from anyformer.checkpoints.key_tables.vit import body
from anyformer.checkpoints.names import Names, batch_of_one, by_names
from anyformer.recipes.timesformer import TimeSformerConfig

_ATTENDS = {"divided": "divided_space_time", "joint": "joint_space_time", "space": "space_only"}


def names(config: TimeSformerConfig) -> Names:
    divided = config.attention_type == "divided"
    looks = "space" if divided else "self"
    layer = {
        f"{looks}.norm": "layernorm_before",
        f"{looks}.qkv": "attention.attention.qkv",
        f"{looks}.out": "attention.output.dense",
        "feedforward.norm": "layernorm_after",
        "feedforward.up": "intermediate.dense",
        "feedforward.down": "output.dense",
        "time.norm": "temporal_layernorm",
        "time.qkv": "temporal_attention.attention.qkv",
        "time.out": "temporal_attention.output.dense",
        "time.project": "temporal_dense",
    }
    return {
        **body("timesformer", layer),
        "encoder.inputs.times.weight": batch_of_one("timesformer.embeddings.time_embeddings"),
        "classify.classes": "classifier",
    }


_ALIASES = ((r"^(embeddings|encoder|layernorm)\.", r"timesformer.\1."),)

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
    **by_names("timesformer", names, prefix="timesformer", aliases=_ALIASES),
)
