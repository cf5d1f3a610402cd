"""Random augmentation of spectrograms [B, frames, mels], on any device, with a given generator."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def mask_time(x: Tensor, most: int, generator: Generator, times: int = 1, fill: float = 0.0) -> Tensor:
    """Mask up to `most` consecutive frames, `times` over (SpecAugment, Park et al. 2019)."""
    for _ in range(times):
        x = x.masked_fill(_stripes(x.shape[0], x.shape[1], most, generator).unsqueeze(2), fill)
    return x


def mask_frequency(x: Tensor, most: int, generator: Generator, times: int = 1, fill: float = 0.0) -> Tensor:
    """Mask up to `most` neighboring mels, `times` over (SpecAugment)."""
    for _ in range(times):
        x = x.masked_fill(_stripes(x.shape[0], x.shape[2], most, generator).unsqueeze(1), fill)
    return x


def _stripes(rows: int, length: int, most: int, generator: Generator) -> Tensor:
    """[rows, length]: True in a run of 0 to `most` positions at a random start."""
    random = torch.rand(2, rows, 1, generator=generator, device=generator.device)
    width = (random[0] * (min(most, length) + 1)).floor()
    start = (random[1] * (length - width + 1)).floor()
    at = torch.arange(length, device=generator.device)
    return (at >= start) & (at < start + width)


def shift(x: Tensor, most: int, generator: Generator) -> Tensor:
    """Shift by up to `most` frames in either direction, cyclically, as in the training of AST."""
    steps = torch.randint(-most, most + 1, (x.shape[0], 1), generator=generator, device=generator.device)
    at = (torch.arange(x.shape[1], device=x.device) - steps.to(x.device)) % x.shape[1]
    return x.gather(1, at.unsqueeze(2).expand_as(x))


def add_noise(x: Tensor, most: float, generator: Generator) -> Tensor:
    """Add uniform noise with a random strength up to `most` for each row (Gong et al. 2021)."""
    even = torch.rand(x.shape, generator=generator, device=generator.device)
    strength = torch.rand(x.shape[0], 1, 1, generator=generator, device=generator.device) * most
    return x + (even * strength).to(x)
