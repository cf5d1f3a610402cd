"""Resampling with a windowed sinc (Smith 1984), equal to torchaudio's."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import InputError

ZEROS = 6  # zero crossings of the sinc on either side
ROLLOFF = 0.99  # cutoff as a fraction of the lower Nyquist frequency
LARGE = 2**22  # maximum size of the filters together; sampling rates without a common divisor would need billions
BLOCK = 2**16  # new samples at a time if each has its own filter


def resample(wave: Tensor, old: int, new: int) -> Tensor:
    """Resample […, n] at the old rate to […, ⌈n · new / old⌉] at the new one."""
    if old <= 0 or new <= 0:
        raise InputError(f"The sampling rates are {old} and {new}; they must be above 0.")
    common = math.gcd(old, new)
    old, new = old // common, new // common
    if old == new or not wave.shape[-1]:
        return wave
    length = math.ceil(new * wave.shape[-1] / old)
    if new * old > LARGE:
        return _one_by_one(wave, old, new, length)
    kernel, width = _kernel(old, new)
    kernel = kernel.to(device=wave.device, dtype=wave.dtype)
    flat = F.pad(wave.reshape(-1, 1, wave.shape[-1]), (width, width + old))
    made = F.conv1d(flat, kernel, stride=old)  # [rows, new, n / old]
    return made.transpose(1, 2).reshape(*wave.shape[:-1], -1)[..., :length]


def _one_by_one(wave: Tensor, old: int, new: int, length: int) -> Tensor:
    """Resample with a filter computed for each new sample."""
    cutoff, width = _reach(old, new)
    around = torch.arange(-width, width + 2)
    padded = F.pad(wave, (width, width + 2 + old // new))
    made = []
    for start in range(0, length, BLOCK):
        here = torch.arange(start, min(start + BLOCK, length))[:, None]
        near = here * old // new + around  # old samples [new samples, taps]
        offset = (near * new - here * old).double() / (old * new)
        taps = _windowed(offset, old, cutoff).to(device=wave.device, dtype=wave.dtype)
        made.append((padded[..., near.to(wave.device) + width] * taps).sum(dim=-1))
    return torch.cat(made, dim=-1)


@lru_cache(maxsize=16)
def _kernel(old: int, new: int) -> tuple[Tensor, int]:
    """The filters [new, 1, taps] of one period, for rates without a common divisor, and half their width."""
    cutoff, width = _reach(old, new)
    at = torch.arange(-width, width + old, dtype=torch.float64)[None] / old
    offset = at - torch.arange(new, dtype=torch.float64)[:, None] / new  # in seconds, from each new sample
    return _windowed(offset, old, cutoff)[:, None], width


def _reach(old: int, new: int) -> tuple[float, int]:
    """The cutoff frequency, and the old samples that a filter spans on either side."""
    cutoff = min(old, new) * ROLLOFF
    return cutoff, math.ceil(ZEROS * old / cutoff)


def _windowed(offset: Tensor, old: int, cutoff: float) -> Tensor:
    phase = (offset * cutoff).clamp(-ZEROS, ZEROS)
    window = torch.cos(phase * math.pi / ZEROS / 2).square()  # Hann window
    return torch.sinc(phase) * window * cutoff / old
