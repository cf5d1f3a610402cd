"""Sounds made of formulas."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def tone(seconds: float, rate: int = 16_000, pitch: float = 440.0, loud: float = 0.5) -> Tensor:
    return loud * torch.sin(2 * math.pi * pitch * torch.arange(int(seconds * rate)) / rate)


def noise(seconds: float, rate: int = 16_000, seed: int = 0, loud: float = 0.1) -> Tensor:
    return loud * torch.randn(int(seconds * rate), generator=torch.Generator().manual_seed(seed))


def speech_like(seconds: float, seed: int = 0) -> Tensor:
    """Tones that come and go over a little noise, with a hard silence at the end."""
    wave = noise(seconds, seed=seed, loud=0.02)
    for i, pitch in enumerate((150.0, 700.0, 1900.0, 5200.0)):
        swell = torch.sin(math.pi * (2 + i) * torch.arange(len(wave)) / len(wave)).square()
        wave = wave + 0.2 * swell * tone(seconds, pitch=pitch, loud=1.0)[: len(wave)]
    wave[-len(wave) // 10 :] = 0
    return wave
