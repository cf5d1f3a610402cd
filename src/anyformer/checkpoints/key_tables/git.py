"""GIT: BERT's names for the text, CLIP's for the image, and a projection between them."""

from __future__ import annotations

from dataclasses import replace

from anyformer.checkpoints.key_table import ENCODER, ConfigField, KeyTable, first, with_defaults
from anyformer.checkpoints.key_tables import clip
from anyformer.checkpoints.key_tables.bert import body
from anyformer.checkpoints.names import Names, batch_of_one, by_names
from anyformer.recipes.git import GITConfig

_VISION = replace(
    clip.VISION,
    model_type="git_vision_model",
    architectures={"GitVisionModel": {"head": "base"}},
    fields=with_defaults(clip.VISION.fields, without=("d_shared",), patch_size=16),
)


_CONNECT, _TOWER = "git.visual_projection.visual_projection", "git.image_encoder.vision_model"
_BERT = body("git")


def names(config: GITConfig) -> Names:
    inside = [ours for ours in _BERT if ours.startswith("encoder.") and not ours.endswith((".types", ".project"))]
    times = range(config.n_frames or 0)
    return {
        **clip.vision_names(_TOWER),
        "vision.final_norm": f"{_TOWER}.post_layernorm",
        **{f"decoder.{ours.removeprefix('encoder.')}": _BERT[ours] for ours in inside},
        "decoder.inputs.connect": f"{_CONNECT}.0",
        "decoder.inputs.connect_norm": f"{_CONNECT}.1",
        **{f"decoder.inputs.frames.{i}.weight": batch_of_one(f"git.img_temporal_embedding.{i}") for i in times},
        "language.words": "output",
        "language.bias": "output.bias",
    }


_ALIASES = ((r"^(embeddings|encoder|image_encoder|visual_projection|img_temporal_embedding)\.", r"git.\1."),)

TABLE = KeyTable(
    family="git",
    model_type="git",
    architectures={"GitForCausalLM": {"head": "language"}, "GitModel": {"head": "base"}},
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
    **by_names("git", names, prefix="git", aliases=_ALIASES, ignored=(r"^git\.img_temporal_embedding\.",)),
    required_values={"position_embedding_type": ("absolute",)},
)
