"""GIT: BERT's names for the text, CLIP's for the picture, and a projection between them."""

from __future__ import annotations

from dataclasses import replace

from anyformer.recipes.git import GIT
from anyformer.weights.table import ENCODER, Field, Key, Table, assume, both, first, spoken, vectors
from anyformer.weights.tables import clip
from anyformer.weights.tables.bert import layers

_VISION = replace(
    clip.VISION,
    model_type="git_vision_model",
    architectures={"GitVisionModel": {"head": "base"}},
    fields=assume(clip.VISION.fields, without=("d_shared",), patch_size=16),
)


def keys(config: GIT) -> list[Key]:
    tower, width = "git.image_encoder.vision_model.", config.vision.d_model
    inputs, connect = "decoder.inputs", "git.visual_projection.visual_projection"
    rows = [
        *clip.vision_inputs(config.vision, tower),
        *both("vision.final_norm", f"{tower}post_layernorm"),
        Key(f"{inputs}.positions.weight", "git.embeddings.position_embeddings.weight"),
        *both(f"{inputs}.norm", "git.embeddings.LayerNorm"),
        *both(f"{inputs}.connect", f"{connect}.0"),
        *both(f"{inputs}.connect_norm", f"{connect}.1"),
        *spoken(config.tied, "git.embeddings.word_embeddings.weight", "output.weight"),
        *layers(config.n_layers, "git.encoder.layer.{i}", side="decoder"),
        Key("language.bias", "output.bias"),
    ]
    for i in range(config.n_frames or 0):
        rows.append(vectors(f"{inputs}.frames.{i}.weight", f"git.img_temporal_embedding.{i}", 1, width))
    return rows


def leftovers(config: GIT) -> tuple[str, ...]:
    frames = () if config.n_frames else (r"^git\.img_temporal_embedding\.",)
    return (r"position_ids$", *frames)


TABLE = Table(
    family="git",
    model_type="git",
    architectures={"GitForCausalLM": {}},
    fields=(
        clip.part("vision", _VISION, "GitVisionModel"),
        *assume(ENCODER, num_hidden_layers=6, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
        Field("vocab_size", "vocab_size", 30522),
        Field("max_length", "max_position_embeddings", 1024),
        Field("n_frames", "num_image_with_embedding", None),
        Field("tied", "tie_word_embeddings", False),
        Field("padding", "pad_token_id", 0),
        Field("begin", "bos_token_id", 101),
        Field("end", "eos_token_id", 102, read=first),
    ),
    keys=keys,
    fixed={"position_embedding_type": ("absolute",)},
    leftovers=leftovers,
)
