"""GIT: BERT's names for the text, CLIP's for the picture, and a projection between them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from anyformer.recipes.git import GIT
from anyformer.weights.table import Field, Key, Table, both, each_layer, read_activation, write_activation
from anyformer.weights.tables import clip

_VISION = replace(
    clip.VISION,
    model_type="git_vision_model",
    architectures={"GitVisionModel": {"head": "base"}},
    fields=tuple(
        replace(entry, default=16) if entry.ours == "patch_size" else entry
        for entry in clip.VISION.fields
        if entry.ours != "d_shared"
    ),
)


def layer() -> list[Key]:
    block, theirs = "decoder.blocks.{i}", "git.encoder.layer.{i}"
    rows = []
    for role in ("query", "key", "value"):
        rows += both(f"{block}.self.{role}", f"{theirs}.attention.self.{role}")
    return [
        *rows,
        *both(f"{block}.self.out", f"{theirs}.attention.output.dense"),
        *both(f"{block}.self.norm", f"{theirs}.attention.output.LayerNorm"),
        *both(f"{block}.feedforward.up", f"{theirs}.intermediate.dense"),
        *both(f"{block}.feedforward.down", f"{theirs}.output.dense"),
        *both(f"{block}.feedforward.norm", f"{theirs}.output.LayerNorm"),
    ]


def keys(config: GIT) -> list[Key]:
    tower, width = "git.image_encoder.vision_model.", config.vision.d_model
    inputs, connect = "decoder.inputs", "git.visual_projection.visual_projection"
    rows = [
        *clip.vision_inputs(config.vision, tower),
        *both("vision.final_norm", f"{tower}post_layernorm"),
        Key(f"{inputs}.words.weight", "git.embeddings.word_embeddings.weight", also=_tied(config)),
        Key(f"{inputs}.positions.weight", "git.embeddings.position_embeddings.weight"),
        *both(f"{inputs}.norm", "git.embeddings.LayerNorm"),
        *both(f"{inputs}.connect", f"{connect}.0"),
        *both(f"{inputs}.connect_norm", f"{connect}.1"),
        *each_layer(config.n_layers, layer()),
        Key("language.bias", "output.bias"),
    ]
    for i in range(config.n_frames or 0):
        rows.append(Key(f"{inputs}.frames.{i}.weight", f"git.img_temporal_embedding.{i}", "reshape", (1, 1, width)))
    return rows if config.tied else [*rows, Key("language.words.weight", "output.weight")]


def _tied(config: GIT) -> tuple[str, ...]:
    return ("output.weight",) if config.tied else ()


def leftovers(config: GIT) -> tuple[str, ...]:
    frames = () if config.n_frames else (r"^git\.img_temporal_embedding\.",)
    return (r"position_ids$", *frames)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


TABLE = Table(
    family="git",
    model_type="git",
    architectures={"GitForCausalLM": {}},
    fields=(
        Field(
            "vision",
            "vision_config",
            {},
            partial(clip.read_part, _VISION, "GitVisionModel", "vision_config"),
            partial(clip.write_part, _VISION),
        ),
        Field("n_layers", "num_hidden_layers", 6),
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_hidden", "intermediate_size", 3072),
        Field("vocab_size", "vocab_size", 30522),
        Field("max_length", "max_position_embeddings", 1024),
        Field("activation", "hidden_act", "gelu", read_activation, write_activation),
        Field("norm_eps", "layer_norm_eps", 1e-12),
        Field("dropout", "hidden_dropout_prob", 0.1),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.1),
        Field("n_frames", "num_image_with_embedding", None),
        Field("tied", "tie_word_embeddings", False),
        Field("padding", "pad_token_id", 0),
        Field("begin", "bos_token_id", 101),
        Field("end", "eos_token_id", 102, read=_first),
    ),
    keys=keys,
    fixed={"position_embedding_type": ("absolute",)},
    leftovers=leftovers,
)
