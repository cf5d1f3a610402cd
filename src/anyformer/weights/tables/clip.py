"""CLIP and its two towers, alone or together. A tower alone has bare names in today's files and prefixed ones in older
ones; both are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.recipes.clip import CLIP, CLIPText, CLIPVision
from anyformer.weights.table import (
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


def _layers(n: int, stage: str, theirs: str) -> list[Key]:
    block, layer = f"{stage}.blocks.{{i}}", f"{theirs}encoder.layers.{{i}}"
    rows = [
        *both(f"{block}.self.out", f"{layer}.self_attn.out_proj"),
        *both(f"{block}.self.norm", f"{layer}.layer_norm1"),
        *both(f"{block}.feedforward.norm", f"{layer}.layer_norm2"),
        *both(f"{block}.feedforward.up", f"{layer}.mlp.fc1"),
        *both(f"{block}.feedforward.down", f"{layer}.mlp.fc2"),
    ]
    for role, letter in (("query", "q"), ("key", "k"), ("value", "v")):
        rows += both(f"{block}.self.{role}", f"{layer}.self_attn.{letter}_proj")
    return each_layer(n, rows)


def text_keys(config: CLIPText, theirs: str = "text_model.", head: str = "") -> list[Key]:
    rows = [
        Key("text.inputs.words.weight", f"{theirs}embeddings.token_embedding.weight"),
        Key("text.inputs.positions.weight", f"{theirs}embeddings.position_embedding.weight"),
        *_layers(config.n_layers, "text", theirs),
        *both("text.final_norm", f"{theirs}final_layer_norm"),
    ]
    projection = Key(f"{head or config.head}.project.weight", "text_projection.weight")
    return [*rows, projection] if head or config.head == "embed" else rows


def vision_inputs(config: CLIPVision, theirs: str) -> list[Key]:
    """The picture's tower without its last norm."""
    width, patch = config.d_model, config.patch_size
    return [
        Key("vision.inputs.class_token.weight", f"{theirs}embeddings.class_embedding", "reshape", (width,)),
        Key(
            "vision.inputs.patches.weight",
            f"{theirs}embeddings.patch_embedding.weight",
            "reshape",
            (width, config.n_channels, *patch),
        ),
        Key("vision.inputs.positions.weight", f"{theirs}embeddings.position_embedding.weight"),
        *both("vision.inputs.norm", f"{theirs}pre_layrnorm"),
        *_layers(config.n_layers, "vision", theirs),
    ]


def vision_keys(config: CLIPVision, theirs: str = "vision_model.", head: str = "") -> list[Key]:
    place = head or config.head
    rows = [*vision_inputs(config, theirs), *both(f"{place}.norm", f"{theirs}post_layernorm")]
    projection = Key(f"{place}.project.weight", "visual_projection.weight")
    return [*rows, projection] if head or config.head == "embed" else rows


def keys(config: CLIP) -> list[Key]:
    scale = Key("match.scale", "logit_scale")
    return [*text_keys(config.text, head="match.text"), *vision_keys(config.vision, head="match.image"), scale]


def _rename(prefix: str, config: CLIPText | CLIPVision, name: str) -> str:
    """Alone and bare, a tower's names have no prefix."""
    return name.removeprefix(prefix) if config.head == "base" else name


def _tower_leftovers(config: CLIPText | CLIPVision) -> tuple[str, ...]:
    return (r"position_ids$", r"^(text|visual)_projection\.") if config.head == "base" else (r"position_ids$",)


_FIELDS = (
    Field("n_layers", "num_hidden_layers", 12),
    Field("activation", "hidden_act", "quick_gelu", read_activation, write_activation),
    Field("norm_eps", "layer_norm_eps", 1e-5),
    Field("attention_dropout", "attention_dropout", 0.0),
    Field("d_shared", "projection_dim", 512),
    Field("init_std", "initializer_range", 0.02),
)
_INERT = frozenset({"initializer_factor", "dropout"})

TEXT = Table(
    family="clip-text",
    model_type="clip_text_model",
    architectures={"CLIPTextModel": {"head": "base"}, "CLIPTextModelWithProjection": {"head": "embed"}},
    fields=(
        *_FIELDS,
        Field("d_model", "hidden_size", 512),
        Field("n_heads", "num_attention_heads", 8),
        Field("d_hidden", "intermediate_size", 2048),
        Field("vocab_size", "vocab_size", 49408),
        Field("max_length", "max_position_embeddings", 77),
        Field("padding", "pad_token_id", 1),
        Field("end", "eos_token_id", 49407),
    ),
    keys=text_keys,
    inert=_INERT,
    aliases=((r"^(embeddings|encoder|final_layer_norm)\.", r"text_model.\1."),),
    leftovers=_tower_leftovers,
    rename=partial(_rename, "text_model."),
)

VISION = Table(
    family="clip-vision",
    model_type="clip_vision_model",
    architectures={"CLIPVisionModel": {"head": "base"}, "CLIPVisionModelWithProjection": {"head": "embed"}},
    fields=(
        *_FIELDS,
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_hidden", "intermediate_size", 3072),
        Field("image_size", "image_size", 224, pair, unpair),
        Field("patch_size", "patch_size", 32, pair, unpair),
        Field("n_channels", "num_channels", 3),
    ),
    keys=vision_keys,
    inert=_INERT,
    aliases=((r"^(embeddings|encoder|pre_layrnorm|post_layernorm)\.", r"vision_model.\1."),),
    leftovers=_tower_leftovers,
    rename=partial(_rename, "vision_model."),
)


def read_part(table: Table, architecture: str, name: str, config: Mapping[str, Any]) -> Any:
    """A config inside a config."""
    from anyformer.weights.hf import read_config  # which reads this table too

    return read_config(table, architecture, dict(config or {}), Path(name))


def write_part(table: Table, settings: Any) -> dict[str, Any]:
    fields = {entry.theirs: entry.write(getattr(settings, entry.ours)) for entry in table.fields}
    return {**fields, "model_type": table.model_type}


def _older(config: dict[str, Any]) -> dict[str, Any]:
    """Older configs say some things twice; what stands in …_config_dict wins."""
    for name in ("text_config", "vision_config"):
        config = {**config, name: {**(config.get(name) or {}), **(config.get(f"{name}_dict") or {})}}
    return config


def _leftovers(config: CLIP) -> tuple[str, ...]:
    return (r"position_ids$",)


def _extras(config: CLIP, today: dict[str, Any]) -> dict[str, Any]:
    return {"text_config_dict": None, "vision_config_dict": None} if re.search("_dict", " ".join(today)) else {}


TABLE = Table(
    family="clip",
    model_type="clip",
    architectures={"CLIPModel": {}},
    fields=(
        Field(
            "text",
            "text_config",
            {},
            partial(read_part, TEXT, "CLIPTextModelWithProjection", "text_config"),
            partial(write_part, TEXT),
        ),
        Field(
            "vision",
            "vision_config",
            {},
            partial(read_part, VISION, "CLIPVisionModelWithProjection", "vision_config"),
            partial(write_part, VISION),
        ),
        Field("d_shared", "projection_dim", 512),
        Field("log_scale", "logit_scale_init_value", 2.6592),
    ),
    keys=keys,
    inert=frozenset({"initializer_factor", "text_config_dict", "vision_config_dict"}),
    adjust=_older,
    leftovers=_leftovers,
    extras=_extras,
)
