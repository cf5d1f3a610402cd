"""GIT: BERT's names for the text, CLIP's for the image, and a projection between them."""

from __future__ import annotations

from dataclasses import replace

from anyformer.checkpoints.key_table import (
    ENCODER,
    ConfigField,
    Key,
    KeyTable,
    first,
    lm_head_keys,
    vectors,
    weight_and_bias,
    with_defaults,
)
from anyformer.checkpoints.key_tables import clip
from anyformer.checkpoints.key_tables.bert import layers
from anyformer.recipes.git import GITConfig

_VISION = replace(
    clip.VISION,
    model_type="git_vision_model",
    architectures={"GitVisionModel": {"head": "base"}},
    fields=with_defaults(clip.VISION.fields, without=("d_shared",), patch_size=16),
)


def keys(config: GITConfig) -> list[Key]:
    tower, width = "git.image_encoder.vision_model.", config.vision.d_model
    inputs, connect = "decoder.inputs", "git.visual_projection.visual_projection"
    rows = [
        *clip.vision_inputs(config.vision, tower),
        *weight_and_bias("vision.final_norm", f"{tower}post_layernorm"),
        Key(f"{inputs}.positions.weight", "git.embeddings.position_embeddings.weight"),
        *weight_and_bias(f"{inputs}.norm", "git.embeddings.LayerNorm"),
        *weight_and_bias(f"{inputs}.connect", f"{connect}.0"),
        *weight_and_bias(f"{inputs}.connect_norm", f"{connect}.1"),
        *lm_head_keys(config.tied, "git.embeddings.word_embeddings.weight", "output.weight"),
        *layers(config.n_layers, "git.encoder.layer.{i}", side="decoder"),
        Key("language.bias", "output.bias"),
    ]
    for i in range(config.n_frames or 0):
        rows.append(vectors(f"{inputs}.frames.{i}.weight", f"git.img_temporal_embedding.{i}", 1, width))
    return rows


def ignored_keys(config: GITConfig) -> tuple[str, ...]:
    frames = () if config.n_frames else (r"^git\.img_temporal_embedding\.",)
    return (r"position_ids$", *frames)


TABLE = KeyTable(
    family="git",
    model_type="git",
    architectures={"GitForCausalLM": {}},
    fields=(
        clip.part("vision", _VISION, "GitVisionModel"),
        *with_defaults(ENCODER, num_hidden_layers=6, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
        ConfigField("vocab_size", "vocab_size", 30522),
        ConfigField("max_length", "max_position_embeddings", 1024),
        ConfigField("n_frames", "num_image_with_embedding", None),
        ConfigField("tied", "tie_word_embeddings", False),
        ConfigField("padding", "pad_token_id", 0),
        ConfigField("begin", "bos_token_id", 101),
        ConfigField("end", "eos_token_id", 102, read=first),
    ),
    keys=keys,
    required_values={"position_embedding_type": ("absolute",)},
    ignored_keys=ignored_keys,
)
