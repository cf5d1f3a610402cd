"""Log-mel spectrograms in torch: framing, Fourier transform, mel filters."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Scale = Literal["kaldi", "slaney"]

BREAK_HZ, BREAK_MEL = 1000.0, 15.0  # where Slaney's scale changes from linear to logarithmic
MELS_PER_LOG = 27.0 / math.log(6.4)


def to_mel(hertz: Tensor, scale: Scale) -> Tensor:
    if scale == "kaldi":
        return 1127.0 * torch.log1p(hertz / 700.0)
    bent = BREAK_MEL + (hertz.clamp(min=BREAK_HZ) / BREAK_HZ).log() * MELS_PER_LOG
    return torch.where(hertz < BREAK_HZ, hertz * BREAK_MEL / BREAK_HZ, bent)


def to_hertz(mel: Tensor, scale: Scale) -> Tensor:
    if scale == "kaldi":
        return 700.0 * torch.expm1(mel / 1127.0)
    bent = BREAK_HZ * ((mel - BREAK_MEL) / MELS_PER_LOG).exp()
    return torch.where(mel < BREAK_MEL, mel * BREAK_HZ / BREAK_MEL, bent)


@lru_cache(maxsize=16)
def mel_filters(bins: int, mels: int, low: float, high: float, rate: int, scale: Scale) -> Tensor:
    """Triangular filters [bins, mels] in float64 that overlap by half. Kaldi's are linear in mel with height 1;
    Slaney's are linear in hertz with equal area."""
    ends = to_mel(torch.tensor([low, high], dtype=torch.float64), scale)
    corners = torch.linspace(float(ends[0]), float(ends[1]), mels + 2, dtype=torch.float64)
    if scale == "kaldi":
        positions = to_mel(torch.arange(bins, dtype=torch.float64) * rate / (2 * (bins - 1)), scale)
    else:
        positions, corners = torch.linspace(0, rate // 2, bins, dtype=torch.float64), to_hertz(corners, scale)
    gaps = corners.diff()
    slopes = corners[None] - positions[:, None]
    filters = torch.minimum(-slopes[:, :-2] / gaps[:-1], slopes[:, 2:] / gaps[1:]).clamp(min=0)
    return filters if scale == "kaldi" else filters * 2 / (corners[2:] - corners[:-2])


def kaldi_log_mel(wave: Tensor, rate: int, mels: int, frame: int = 400, hop: int = 160) -> Tensor:
    """Kaldi's log-mel filter bank [frames, mels] of a waveform [n], as AST was trained on: only whole frames, each with
    its mean removed, pre-emphasis and a Hann window."""
    if wave.shape[-1] < frame:
        return wave.new_zeros(0, mels)
    size = 2 ** math.ceil(math.log2(frame))
    frames = wave.double().unfold(-1, frame, hop)
    frames = frames - frames.mean(dim=-1, keepdim=True)
    before = torch.cat([frames[..., :1], frames[..., :-1]], dim=-1)
    frames = (frames - 0.97 * before) * torch.hann_window(
        frame, periodic=False, dtype=torch.float64, device=wave.device
    )
    power = torch.fft.rfft(frames, size).abs().square()
    filters = mel_filters(size // 2 + 1, mels, 20.0, float(rate // 2), rate, "kaldi").to(wave.device)
    return (power @ filters).clamp(min=2.0**-23).log().float()


def whisper_log_mel(waves: Tensor, rate: int, mels: int, size: int = 400, hop: int = 160) -> Tensor:
    """Whisper's log-mel spectrogram [B, mels, n / hop] of waveforms [B, n]: clipped at 80 dB below the maximum of each
    row, shifted and scaled to about -1…1."""
    window = torch.hann_window(size, device=waves.device)
    bent = torch.stft(waves.float(), size, hop, window=window, return_complex=True)[..., :-1]
    filters = mel_filters(size // 2 + 1, mels, 0.0, 8000.0, rate, "slaney").to(waves.device, torch.float32)
    logs = (filters.T @ bent.abs().square().contiguous()).clamp(min=1e-10).log10()
    loudest = logs.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(logs, loudest - 8.0) + 4.0) / 4.0
