"""CLIP and its two towers, alone or together. A tower alone has bare names in today's files and prefixed ones in older
ones; both are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from anyformer.checkpoints.hf_config import read_config
from anyformer.checkpoints.key_table import (
    PICTURES,
    ConfigField,
    Key,
    KeyTable,
    activation,
    each_layer,
    strip_prefix,
    weight_and_bias,
    weights_and_biases,
    with_defaults,
)
from anyformer.recipes.clip import CLIPConfig, CLIPTextConfig, CLIPVisionConfig

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


def _layers(n: int, stage: str, theirs: str) -> list[Key]:
    block, layer = f"{stage}.blocks.{{i}}", f"{theirs}encoder.layers.{{i}}"
    return each_layer(n, weights_and_biases(block, layer, _LAYER))


def text_keys(config: CLIPTextConfig, theirs: str = "text_model.", head: str = "") -> list[Key]:
    rows = [
        Key("text.inputs.words.weight", f"{theirs}embeddings.token_embedding.weight"),
        Key("text.inputs.positions.weight", f"{theirs}embeddings.position_embedding.weight"),
        *_layers(config.n_layers, "text", theirs),
        *weight_and_bias("text.final_norm", f"{theirs}final_layer_norm"),
    ]
    projection = Key(f"{head or config.head}.project.weight", "text_projection.weight")
    return [*rows, projection] if head or config.head == "embed" else rows


def vision_inputs(config: CLIPVisionConfig, theirs: str) -> list[Key]:
    """The image's tower without its last norm."""
    width, ours, embeddings = config.d_model, "vision.inputs", f"{theirs}embeddings"
    patch = (width, config.n_channels, *config.patch_size)
    return [
        Key(f"{ours}.class_token.weight", f"{embeddings}.class_embedding", "reshape", (width,)),
        Key(f"{ours}.patches.weight", f"{embeddings}.patch_embedding.weight", "reshape", patch),
        Key(f"{ours}.positions.weight", f"{embeddings}.position_embedding.weight"),
        *weight_and_bias(f"{ours}.norm", f"{theirs}pre_layrnorm"),
        *_layers(config.n_layers, "vision", theirs),
    ]


def vision_keys(config: CLIPVisionConfig, theirs: str = "vision_model.", head: str = "") -> list[Key]:
    place = head or config.head
    rows = [*vision_inputs(config, theirs), *weight_and_bias(f"{place}.norm", f"{theirs}post_layernorm")]
    projection = Key(f"{place}.project.weight", "visual_projection.weight")
    return [*rows, projection] if head or config.head == "embed" else rows


def keys(config: CLIPConfig) -> list[Key]:
    scale = Key("match.scale", "logit_scale")
    return [*text_keys(config.text, head="match.text"), *vision_keys(config.vision, head="match.image"), scale]


def _tower_leftovers(config: CLIPTextConfig | CLIPVisionConfig) -> tuple[str, ...]:
    return (r"position_ids$", r"^(text|visual)_projection\.") if config.head == "base" else (r"position_ids$",)


_FIELDS = (
    ConfigField("n_layers", "num_hidden_layers", 12),
    activation("hidden_act", "quick_gelu"),
    ConfigField("norm_eps", "layer_norm_eps", 1e-5),
    ConfigField("attention_dropout", "attention_dropout", 0.0),
    ConfigField("d_shared", "projection_dim", 512),
    ConfigField("init_std", "initializer_range", 0.02),
)
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
    keys=text_keys,
    ignored_fields=_INERT,
    aliases=((r"^(embeddings|encoder|final_layer_norm)\.", r"text_model.\1."),),
    ignored_keys=_tower_leftovers,
    rename=strip_prefix("text_model."),
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
    keys=vision_keys,
    ignored_fields=_INERT,
    aliases=((r"^(embeddings|encoder|pre_layrnorm|post_layernorm)\.", r"vision_model.\1."),),
    ignored_keys=_tower_leftovers,
    rename=strip_prefix("vision_model."),
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
    keys=keys,
    ignored_fields=frozenset({"initializer_factor", "text_config_dict", "vision_config_dict"}),
    upgrade_config=_older,
    ignored_keys=lambda config: (r"position_ids$",),
    extra_fields=_extras,
)
