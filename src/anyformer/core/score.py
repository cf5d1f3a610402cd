"""Alignment functions, the scores of a query and a key. Fast kernels compute dot products."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DotScore(nn.Module):
    """Scaled dot product (Vaswani et al. 2017, §3.2.1): q·k / √d_head / temperature; `scaled=False` is Luong's dot."""

    def __init__(self, scaled: bool = True, temperature: float = 1.0) -> None:
        super().__init__()
        self.scaled = scaled
        self.temperature = temperature

    def scale(self, d_head: int) -> float:
        return (d_head**-0.5 if self.scaled else 1.0) / self.temperature

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2) * self.scale(query.shape[-1])


class SoftCappedScore(nn.Module):
    """Scaled dot product, bent so that it stays between -cap and cap (Gemma 2, §2)."""

    def __init__(self, scale: float, cap: float) -> None:
        super().__init__()
        self.scale, self.cap = scale, cap

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return soft_cap(query @ key.transpose(-1, -2) * self.scale, self.cap)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): x where it is small, never beyond ±cap."""
    return torch.tanh(x / cap) * cap


class GeneralScore(nn.Module):
    """Luong's general score: qᵀ W k."""

    def __init__(self, d_query: int, d_key: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_query, d_key))
        self.temperature = temperature
        self.reset()

    def reset(self, std: float = 0.0) -> None:
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ self.weight @ key.transpose(-1, -2) / self.temperature


class AdditiveScore(nn.Module):
    """Bahdanau's score: vᵀ tanh(W q + U k) (Bahdanau et al. 2015, A.1.2); also Luong's concat."""

    def __init__(self, d_query: int, d_key: int, d_hidden: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(d_hidden, d_query))
        self.key = nn.Parameter(torch.empty(d_hidden, d_key))
        self.value = nn.Parameter(torch.empty(d_hidden))
        self.temperature = temperature
        self.reset()

    def reset(self, std: float = 0.0) -> None:
        nn.init.xavier_uniform_(self.query)
        nn.init.xavier_uniform_(self.key)
        nn.init.normal_(self.value, std=self.value.shape[0] ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        together = (query @ self.query.T).unsqueeze(-2) + (key @ self.key.T).unsqueeze(-3)  # [B, H, Q, K, d_hidden]
        return torch.tanh(together) @ self.value / self.temperature


class CosineScore(nn.Module):
    """Cosine of the angle between query and key, times a learned factor per head (Liu et al. 2022, Swin v2, §3.2)."""

    LARGEST = math.log(100.0)

    def __init__(self, n_heads: int, start: float = 10.0) -> None:
        super().__init__()
        self.start = start
        self.log_scale = nn.Parameter(torch.full((n_heads, 1, 1), math.log(start)))

    def reset(self, std: float = 0.0) -> None:
        nn.init.constant_(self.log_scale, math.log(self.start))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        cosines = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-1, -2)  # [B, H, Q, K]
        return cosines * self.log_scale.clamp(max=self.LARGEST).exp()
