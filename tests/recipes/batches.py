"""A training batch for every tiny recipe."""

from __future__ import annotations

from typing import Any

import torch

from tests.tiny import family_of

DECODERS = ("gpt1", "gpt2", "gpt3", "gptneox", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")


def training_batch(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    words = torch.randint(1, 250, (2, 8))
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    labels = words.masked_fill(mask == 0, -100)
    pictures = torch.randn(2, 3, 32, 32)
    family = family_of(name)
    if family in (
        *DECODERS,
        "dalle",
        "image-transformer",
        "imagegpt",
        "mamba",
        "transformer-xl",
        "mlp-mixer",
        "bilstm",
        "textcnn",
    ):
        return {"input_ids": words, "attention_mask": mask, "labels": labels}
    if family == "bert":
        return {
            "input_ids": words,
            "attention_mask": mask,
            "labels": labels,
            "next_sentence_label": torch.tensor([0, 1]),
        }
    if family in ("roberta", "distilbert", "modernbert", "mpnet", "roformer"):
        return {"input_ids": words, "attention_mask": mask, "labels": labels}
    if family == "electra":
        return {"input_ids": words, "attention_mask": mask, "labels": words % 2}
    if family == "electra-joint":
        masked = torch.rand(2, 8) < 0.4
        noise = torch.rand(2, 8, 256)
        batch = {"input_ids": words.masked_fill(masked, 4), "attention_mask": mask, "noise": noise}
        return {**batch, "labels": labels.masked_fill(~masked, -100)}
    if family in (
        "transformer",
        "sutskever",
        "bahdanau",
        "luong",
        "bytenet",
        "convs2s",
        "bart",
        "t5",
        "encoder-decoder",
    ):
        return {"input_ids": words, "attention_mask": mask, "labels": torch.randint(2, 250, (2, 6))}
    if family in ("vision-encoder-decoder", "show-tell", "show-attend-tell", "cnn-transformer"):
        return {"pixel_values": pictures, "labels": torch.randint(2, 250, (2, 6))}
    if family == "line-reader":
        return {"pixel_values": torch.randn(2, 1, 16, 64), "labels": torch.randint(2, 250, (2, 6))}
    if family == "metalm":
        places = torch.full((2, 17), 255)
        text = {"input_ids": torch.cat([places, words.clamp(min=4)], dim=1)}
        return {**text, "labels": torch.cat([places * 0 - 100, labels], dim=1), "pixel_values": pictures}
    if family == "git":
        return {"input_ids": words, "attention_mask": mask, "labels": labels, "pixel_values": pictures}
    if family == "trocr":
        return {"input_ids": words, "labels": labels, "encoder_hidden_states": torch.randn(2, 5, 48)}
    if family in ("clip", "clip-text", "clip-vision"):
        text = {"input_ids": words.scatter(1, mask.sum(dim=1, keepdim=True) - 1, 1), "attention_mask": mask}
        both = {**text, "pixel_values": pictures, "return_loss": True}
        return {"clip": both, "clip-text": text}.get(family, {"pixel_values": pictures})
    if family in ("deit", "dinov2", "hybrid", "resnet", "vit"):
        return {"pixel_values": pictures, "labels": torch.tensor([3, 7])}
    if family == "ast":
        return {"input_values": torch.randn(2, 48, 32), "labels": torch.tensor([3, 7])}
    if family in ("timesformer", "videomae"):
        return {"pixel_values": torch.randn(2, 4, 3, 32, 32), "labels": torch.tensor([3, 7])}
    if family == "set-transformer":
        return {"items": torch.randn(2, 8, 2), "attention_mask": mask, "labels": torch.tensor([2, 1])}
    if family == "ft-transformer":
        columns = {"numbers": torch.randn(2, 3), "categories": torch.tensor([[0, 1], [3, 0]])}
        return {**columns, "labels": torch.tensor([2, 1])}
    if family == "whisper":
        return {"input_features": torch.randn(2, 16, 64), "labels": torch.randint(2, 250, (2, 6))}
    if family == "beit":
        return {"pixel_values": pictures, "labels": torch.tensor([3, 7])}
    if family == "segmenter":
        return {"pixel_values": pictures, "labels": (torch.arange(1024).view(1, 32, 32) // 256).expand(2, -1, -1)}
    if family in ("keypoint-detr", "vitpose"):
        joints = torch.cat([torch.rand(2, 5, 2), torch.tensor([1.0, 1, 1, 1, 0]).expand(2, 5).unsqueeze(-1)], dim=-1)
        size = 64 if family == "vitpose" else 32
        return {"pixel_values": torch.randn(2, 3, size, size), "labels": joints}
    if family == "mae":
        return {"pixel_values": pictures, "noise": torch.rand(2, 16)}
    if family == "detr":
        things = [
            {"class_labels": torch.tensor([0, 2]), "boxes": torch.tensor([[0.3, 0.4, 0.2, 0.2], [0.6, 0.6, 0.5, 0.4]])}
        ]
        return {"pixel_values": torch.randn(2, 3, 64, 64), "labels": things * 2}
    said = torch.full((2, 64), -100)
    said[:, :8] = words
    return {"input_ids": torch.randint(0, 256, (2, 8)), "labels": said}
