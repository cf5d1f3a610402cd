"""CLIP and its two towers, alone or together. A tower alone has bare names in today's files and prefixed ones in older
ones; both are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from anyformer.checkpoints.hf_config import read_config
from anyformer.checkpoints.key_table import PICTURES, ConfigField, KeyTable, activation, with_defaults
from anyformer.checkpoints.names import Name, by_names, under
from anyformer.recipes.clip import CLIPConfig

_LAYER = {
    "self.query": "self_attn.q_proj",
    "self.key": "self_attn.k_proj",
    "self.value": "self_attn.v_proj",
    "self.out": "self_attn.out_proj",
    "self.norm": "layer_norm1",
    "feedforward.norm": "layer_norm2",
    "feedforward.up": "mlp.fc1",
    "feedforward.down": "mlp.fc2",
}


def text_names(theirs: str) -> dict[str, Any]:
    return {
        "text.inputs.words": f"{theirs}.embeddings.token_embedding",
        "text.inputs.positions": f"{theirs}.embeddings.position_embedding",
        **under("text.blocks.{i}", f"{theirs}.encoder.layers.{{i}}", _LAYER),
        "text.final_norm": f"{theirs}.final_layer_norm",
        "*.project": "text_projection",
    }


def _patch(config: Any, ours: Tensor) -> tuple[int, ...]:
    config = getattr(config, "vision", config)
    return (config.d_model, config.n_channels, *config.patch_size)


def vision_names(theirs: str) -> dict[str, Any]:
    """The image's tower without its last norm."""
    embeddings = f"{theirs}.embeddings"
    return {
        "vision.inputs.class_token.weight": Name(f"{embeddings}.class_embedding", lambda config, ours: (ours.numel(),)),
        "vision.inputs.patches": Name(f"{embeddings}.patch_embedding", _patch),
        "vision.inputs.positions": f"{embeddings}.position_embedding",
        "vision.inputs.norm": f"{theirs}.pre_layrnorm",
        **under("vision.blocks.{i}", f"{theirs}.encoder.layers.{{i}}", _LAYER),
    }


NAMES = {
    **text_names("text_model"),
    **vision_names("vision_model"),
    "match.text.project": "text_projection",
    "match.image.norm": "vision_model.post_layernorm",
    "match.image.project": "visual_projection",
    "match.scale": "logit_scale",
}
_VISION_NAMES = {
    **vision_names("vision_model"),
    "*.norm": "vision_model.post_layernorm",
    "*.project": "visual_projection",
}
_FIELDS = (
    ConfigField("n_layers", "num_hidden_layers", 12),
    activation("hidden_act", "quick_gelu"),
    ConfigField("norm_eps", "layer_norm_eps", 1e-5),
    ConfigField("attention_dropout", "attention_dropout", 0.0),
    ConfigField("d_shared", "projection_dim", 512),
    ConfigField("init_std", "initializer_range", 0.02),
)
_PROJECTIONS = (r"^(text|visual)_projection\.",)
_INERT = frozenset({"initializer_factor", "dropout"})

TEXT = KeyTable(
    family="clip-text",
    model_type="clip_text_model",
    architectures={"CLIPTextModel": {"head": "base"}, "CLIPTextModelWithProjection": {"head": "embed"}},
    fields=(
        *_FIELDS,
        ConfigField("d_model", "hidden_size", 512),
        ConfigField("n_heads", "num_attention_heads", 8),
        ConfigField("d_hidden", "intermediate_size", 2048),
        ConfigField("vocab_size", "vocab_size", 49408),
        ConfigField("max_length", "max_position_embeddings", 77),
        ConfigField("padding", "pad_token_id", 1),
        ConfigField("end", "eos_token_id", 49407),
    ),
    **by_names("clip-text", text_names("text_model"), prefix="text_model", ignored=_PROJECTIONS),
    ignored_fields=_INERT,
)

VISION = KeyTable(
    family="clip-vision",
    model_type="clip_vision_model",
    architectures={"CLIPVisionModel": {"head": "base"}, "CLIPVisionModelWithProjection": {"head": "embed"}},
    fields=(
        *_FIELDS,
        ConfigField("d_model", "hidden_size", 768),
        ConfigField("n_heads", "num_attention_heads", 12),
        ConfigField("d_hidden", "intermediate_size", 3072),
        *with_defaults(PICTURES, patch_size=32),
    ),
    **by_names("clip-vision", _VISION_NAMES, prefix="vision_model", ignored=_PROJECTIONS),
    ignored_fields=_INERT,
)


def part(ours: str, table: KeyTable, architecture: str) -> ConfigField:
    """A config inside a config."""
    theirs = f"{ours}_config"

    def read(config: Any) -> Any:
        return read_config(table, architecture, dict(config or {}), Path(theirs))

    def write(settings: Any) -> dict[str, Any]:
        fields = {entry.theirs: entry.write(getattr(settings, entry.ours)) for entry in table.fields}
        return {**fields, "model_type": table.model_type}

    return ConfigField(ours, theirs, {}, read, write)


def _older(config: dict[str, Any]) -> dict[str, Any]:
    """Older configs say some things twice; what stands in …_config_dict wins."""
    for name in ("text_config", "vision_config"):
        config = {**config, name: {**(config.get(name) or {}), **(config.get(f"{name}_dict") or {})}}
    return config


def _extras(config: CLIPConfig, today: dict[str, Any]) -> dict[str, Any]:
    return {"text_config_dict": None, "vision_config_dict": None} if re.search("_dict", " ".join(today)) else {}


TABLE = KeyTable(
    family="clip",
    model_type="clip",
    architectures={"CLIPModel": {}},
    fields=(
        part("text", TEXT, "CLIPTextModelWithProjection"),
        part("vision", VISION, "CLIPVisionModelWithProjection"),
        ConfigField("d_shared", "projection_dim", 512),
        ConfigField("log_scale", "logit_scale_init_value", 2.6592),
    ),
    **by_names("clip", NAMES),
    ignored_fields=frozenset({"initializer_factor", "text_config_dict", "vision_config_dict"}),
    upgrade_config=_older,
    extra_fields=_extras,
)
