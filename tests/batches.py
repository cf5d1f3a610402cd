"""Small uneven batches for the tiny recipes, padded on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import anyformer as af

Batch = dict[str, Any]
SIZES = (9, 4, 6)  # real tokens of each row


def ids(seed: int = 0, sizes: tuple[int, ...] = SIZES) -> list[Tensor]:
    """Rows of word ids; none is an id with a meaning of its own (padding, start, end)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 250, (n,), generator=generator) for n in sizes]


def padded(rows: list[Tensor], side: str, fill: int = 3) -> tuple[Tensor, Tensor]:
    """Ids and mask [B, T]; what stands at the padding is an ordinary word, so that it hurts if it is read."""
    length = max(len(row) for row in rows)
    values, mask = torch.full((len(rows), length), fill), torch.zeros(len(rows), length, dtype=torch.long)
    for b, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        values[b, where], mask[b, where] = row, 1
    return values, mask


def text(side: str = "right") -> Batch:
    values, mask = padded(ids(), side)
    return {"input_ids": values, "attention_mask": mask}


def pair(side: str = "right") -> Batch:
    """A source and a target, each uneven in another way."""
    target, mask = padded(ids(1, (3, 7, 5)), side)
    return {**text(side), "decoder_input_ids": target, "decoder_attention_mask": mask}


def pictures(side: str = "right") -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}


def masked_pictures(side: str = "right") -> Batch:
    """Two images on one canvas, the second smaller."""
    mask = torch.zeros(2, 96, 128, dtype=torch.long)
    mask[0] = 1
    mask[1, :64, :64] = 1
    pixels = torch.randn(2, 3, 96, 128, generator=torch.Generator().manual_seed(0)) * mask.unsqueeze(1)
    return {"pixel_values": pixels, "pixel_mask": mask}


BATCHES: dict[str, Callable[[str], Batch]] = {
    "bert-tiny": text,
    "gpt2-tiny": text,
    "transformer-tiny": pair,
    "vit-tiny": pictures,
    "detr-tiny": masked_pictures,
    "perceiver-tiny": text,
    **{
        f"{family}-tiny": text for family in ("gpt1", "gpt3", "gptneox", "llama", "mistral", "qwen2", "qwen3", "gemma3")
    },
}


def build(name: str, dtype: torch.dtype = torch.float64, **overrides: Any) -> af.Model:
    """A tiny model with every parameter drawn wide enough that a mistake shows."""
    torch.manual_seed(0)
    model = af.build(name, **overrides).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype).eval()


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    return {name: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in batch.items()}
