"""Hugging Face configs of models that read pictures and text, for the count of parameters."""

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

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip-b32": ("CLIPModel", "CLIPConfig", clip(32, 768, 12, 512, 512)),
    "clip-b16": ("CLIPModel", "CLIPConfig", clip(16, 768, 12, 512, 512)),
    "clip-l14": ("CLIPModel", "CLIPConfig", clip(14, 1024, 24, 768, 768)),
    "clip-l14-336": ("CLIPModel", "CLIPConfig", clip(14, 1024, 24, 768, 768, 336)),
    "clip-small": ("CLIPModel", "CLIPConfig", _CLIP_SMALL),
}
