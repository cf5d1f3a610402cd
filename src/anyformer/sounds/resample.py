"""Another rate: each new sample is a windowed sinc over the old ones (Smith 1984), as torchaudio has it."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import InputError

ZEROS = 6  # crossings of the sinc on either side
ROLLOFF = 0.99  # of the lower rate's half, above which nothing is kept


def resample(wave: Tensor, old: int, new: int) -> Tensor:
    """[…, n] at the old rate -> […, ⌈n · new / old⌉] at the new one."""
    if old <= 0 or new <= 0:
        raise InputError(f"Rates are above 0; {old} and {new} were given.")
    common = math.gcd(old, new)
    old, new = old // common, new // common
    if old == new or not wave.shape[-1]:
        return wave
    kernel, width = _kernel(old, new)
    kernel = kernel.to(device=wave.device, dtype=wave.dtype)
    length = math.ceil(new * wave.shape[-1] / old)
    flat = F.pad(wave.reshape(-1, 1, wave.shape[-1]), (width, width + old))
    made = F.conv1d(flat, kernel, stride=old)  # [rows, new, n / old]: the new samples of each run of old ones
    return made.transpose(1, 2).reshape(*wave.shape[:-1], -1)[..., :length]


@lru_cache(maxsize=16)
def _kernel(old: int, new: int) -> tuple[Tensor, int]:
    """The filters [new, 1, taps] of the samples of one run, for rates without a common divisor; and half their span."""
    cutoff = min(old, new) * ROLLOFF
    width = math.ceil(ZEROS * old / cutoff)
    at = torch.arange(-width, width + old, dtype=torch.float64)[None] / old
    offset = at - torch.arange(new, dtype=torch.float64)[:, None] / new  # in seconds, from each new sample
    phase = (offset * cutoff).clamp(-ZEROS, ZEROS)
    window = torch.cos(phase * math.pi / ZEROS / 2).square()  # Hann's
    return (torch.sinc(phase) * window * cutoff / old)[:, None], width
