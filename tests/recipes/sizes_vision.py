"""Hugging Face configs of models that read images and text, for the count of parameters."""

from __future__ import annotations

from typing import Any


def clip(patch: int, width: int, layers: int, text: int, shared: int, picture: int = 224) -> dict[str, Any]:
    return {
        "projection_dim": shared,
        "text_config": {"hidden_size": text, "intermediate_size": 4 * text, "num_attention_heads": text // 64},
        "vision_config": {
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 64,
            "patch_size": patch,
            "image_size": picture,
        },
    }


_CLIP_SMALL = {
    "projection_dim": 256,
    "text_config": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 6000,
        "max_position_embeddings": 64,
    },
    "vision_config": {
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "patch_size": 16,
        "image_size": 160,
    },
}

_BEIT = {"model_type": "vit", "image_size": 384, "qkv_bias": False}
_BEIT_LARGE = {
    **_BEIT,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}


_DEIT = {
    "model_type": "deit",
    "image_size": 384,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 6,
}
_SMALL_DECODER = {
    "d_model": 256,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 1024,
    "cross_attention_hidden_size": 384,
    "vocab_size": 64044,
    "tie_word_embeddings": False,
}


def reader(encoder: dict[str, Any], **decoder: Any) -> tuple[str, str, dict[str, Any]]:
    values = {"encoder": encoder, "decoder": {"model_type": "trocr", "is_decoder": True, **decoder}}
    return "VisionEncoderDecoderModel", "VisionEncoderDecoderConfig", values


_LINES = {
    "model_type": "vit",
    "image_size": (32, 640),
    "patch_size": (32, 8),
    "num_channels": 1,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
_LETTERS = {
    "d_model": 256,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 1024,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}

_GIT_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip-b32": ("CLIPModel", "CLIPConfig", clip(32, 768, 12, 512, 512)),
    "clip-b16": ("CLIPModel", "CLIPConfig", clip(16, 768, 12, 512, 512)),
    "clip-l14": ("CLIPModel", "CLIPConfig", clip(14, 1024, 24, 768, 768)),
    "clip-l14-336": ("CLIPModel", "CLIPConfig", clip(14, 1024, 24, 768, 768, 336)),
    "clip-small": ("CLIPModel", "CLIPConfig", _CLIP_SMALL),
    "git-base": ("GitForCausalLM", "GitConfig", {}),
    "git-large": ("GitForCausalLM", "GitConfig", {"vision_config": _GIT_LARGE}),
    "git-base-vatex": ("GitForCausalLM", "GitConfig", {"num_image_with_embedding": 6}),
    "trocr-small": reader(_DEIT, **_SMALL_DECODER),
    "trocr-base": reader(_BEIT, cross_attention_hidden_size=768),
    "trocr-large": reader(_BEIT_LARGE, cross_attention_hidden_size=1024),
    "trocr-small-lines": reader(_LINES, **_LETTERS),
}


# Made here, for the data at hand; no paper counts them.
OWN = {
    *("show-tell-small", "show-attend-tell-small", "show-attend-tell-hard", "cnn-transformer-small"),
    *("vit-transformer-small", "line-reader-small", "metalm-small", "metalm-b16-124m"),
}
