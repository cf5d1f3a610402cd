"""The oracles of models that read images and text; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.checkpoints.cases import Batch, Case, ids, ragged

HOMES = {"CLIP": "clip", "TrOCR": "trocr", "Git": "git"}

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_SHARED = {"projection_dim": 20}
_CLIP_TEXT = {
    **_LAYERS,
    **_SHARED,
    "vocab_size": 60,
    "max_position_embeddings": 24,
    "bos_token_id": 58,
    "eos_token_id": 59,
}
_CLIP_VISION = {**_LAYERS, **_SHARED, "hidden_size": 40, "image_size": 24, "patch_size": 8}

TROCR = {
    "d_model": 24,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 40,
    "vocab_size": 60,
    "max_position_embeddings": 24,
}

_GIT_VISION = {**_LAYERS, "hidden_size": 40, "image_size": 24, "patch_size": 8}
GIT = {
    **_LAYERS,
    "vision_config": _GIT_VISION,
    "vocab_size": 60,
    "max_position_embeddings": 24,
    "bos_token_id": 3,
    "eos_token_id": 4,
}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "CLIPText": ("CLIPTextConfig", _CLIP_TEXT),
    "CLIPVision": ("CLIPVisionConfig", _CLIP_VISION),
    "CLIP": ("CLIPConfig", {"text_config": _CLIP_TEXT, "vision_config": _CLIP_VISION, **_SHARED}),
    "TrOCR": ("TrOCRConfig", TROCR),
    "Git": ("GitConfig", GIT),
}

ARCHITECTURES = (
    "CLIPModel",
    "CLIPTextModel",
    "CLIPTextModelWithProjection",
    "CLIPVisionModel",
    "CLIPVisionModelWithProjection",
    "TrOCRForCausalLM",
    "GitForCausalLM",
)


def ended_text(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words of uneven rows, each with its end token last, and their mask."""
    mask = ragged(rows, 9)
    words = ids(rows, 9, high=58).scatter(1, mask.sum(dim=1, keepdim=True) - 1, 59)
    return words, mask


def clip_case(architecture: str) -> Case:
    words, mask = ended_text(4)
    text = {"input_ids": words, "attention_mask": mask}
    pictures = {"pixel_values": torch.randn(3, 3, 24, 24)}
    if architecture.startswith("CLIPText"):
        return Case(text, {"": mask})
    if architecture.startswith("CLIPVision"):
        return Case(pictures, {})
    return Case({**text, **pictures}, {"text_model_output": mask})


def trocr_case(architecture: str) -> Case:
    """Padded tokens are the padding id, by which sinusoids are counted."""
    mask = ragged(4, 7)
    words = ids(4, 7).clamp(min=6).masked_fill(mask == 0, 1)
    seen = {"encoder_hidden_states": torch.randn(4, 5, 24), "encoder_attention_mask": ragged(4, 5)}
    return Case({"input_ids": words, "attention_mask": mask, **seen}, {"": mask, "cross": mask})


def git_case(architecture: str) -> Case:
    """An image in front of each text: ten tokens, all of them real."""
    mask = ragged(4, 7)
    batch = {"input_ids": ids(4, 7), "attention_mask": mask, "pixel_values": torch.randn(4, 3, 24, 24)}
    return Case(batch, {"": torch.cat([torch.ones(4, 10, dtype=torch.long), mask], dim=1)})


CASES: dict[str, Callable[[str], Case]] = {
    **dict.fromkeys(("CLIP", "CLIPText", "CLIPVision"), clip_case),
    "TrOCR": trocr_case,
    "Git": git_case,
}
LABELS: dict[str, Callable[[Batch], Batch]] = {
    "CLIPModel": lambda b: {"return_loss": True, "pixel_values": torch.randn(4, 3, 24, 24)},
    **dict.fromkeys(
        ("TrOCRForCausalLM", "GitForCausalLM"),
        lambda b: {"labels": b["input_ids"].masked_fill(b["attention_mask"] == 0, -100)},
    ),
}
