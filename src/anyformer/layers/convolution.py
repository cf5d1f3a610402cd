"""Convolutional layers, and two layers that mix positions without attention.

All process rows in order (see right_padded.py), so padding does not change the result; the causal ones can decode token
by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.attend import attend, attention_weights
from anyformer.core.cache import Cache
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK, Mask, Padding
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.layers.right_padded import RightPadded


class Conv1d(nn.Module):
    """A convolution along rows. If causal, the kernel ends at the token itself, otherwise it is centered on the
    token."""

    def __init__(self, d_in: int, d_out: int, kernel: int, dilation: int = 1, causal: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in, kernel))
        self.bias = nn.Parameter(torch.empty(d_out))
        self.dilation, self.causal = dilation, causal

    def reset(self, std: float) -> None:
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, rows: RightPadded, past: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the result [B, T, d_out] and, if causal, the inputs that the next step needs."""
        reach = (self.weight.shape[2] - 1) * self.dilation
        if not self.causal:
            x = F.pad(rows.x.transpose(1, 2), (reach // 2, reach - reach // 2))
            return F.conv1d(x, self.weight, self.bias, dilation=self.dilation).transpose(1, 2), None
        if past is None:
            past = rows.x.new_zeros(rows.x.shape[0], reach, rows.x.shape[2])
        everything, window = rows.extend(past)
        y = F.conv1d(everything.transpose(1, 2), self.weight, self.bias, dilation=self.dilation)
        return y.transpose(1, 2), window


def _blank(rows: RightPadded, x: Tensor) -> RightPadded:
    """The same rows with other values, and zeros at the padding."""
    real = rows.real
    return RightPadded(
        x if real is None else x.masked_fill(~real.unsqueeze(-1), 0.0), rows.packing, rows.packed, rows.mask
    )


@dataclass(frozen=True, kw_only=True)
class GatedConvolutionConfig(Settings):
    d_model: int
    kernel: int = 3
    causal: bool = True
    dropout: float = 0.0  # of the inputs


class GatedConvolution(nn.Module):
    """A ⊙ σ(B), both convolutions of the rows (Dauphin et al. 2017; ConvS2S §3.2)."""

    tap_points = ("output",)
    crosses = False

    def __init__(self, config: GatedConvolutionConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = config.causal
        self.conv = Conv1d(config.d_model, 2 * config.d_model, config.kernel, causal=config.causal)

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        rows = RightPadded.from_tokens(tokens)
        rows = _blank(rows, F.dropout(rows.x, self.config.dropout, self.training))
        entry = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        y, window = self.conv(rows, entry.get("window"))
        if window is not None:
            entry["window"] = window
        return self.taps.record("output", rows.restore(F.glu(y, dim=-1)), tokens.packing)


@dataclass(frozen=True, kw_only=True)
class DilatedConvBlockConfig(Settings):
    """ByteNet's residual block (Kalchbrenner et al. 2016, figure 3); the first of its norms is the sublayer's."""

    d_model: int
    d_inner: int
    kernel: int = 3
    dilation: int = 1
    causal: bool = True


class DilatedConvBlock(nn.Module):
    """ReLU, narrow, norm, ReLU, dilated convolution, norm, ReLU, widen."""

    tap_points = ("output",)
    crosses = False

    def __init__(self, config: DilatedConvBlockConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = config.causal
        inner = config.d_inner
        self.narrow = Linear(config.d_model, inner)
        self.norm_before, self.norm_after = nn.LayerNorm(inner), nn.LayerNorm(inner)
        self.conv = Conv1d(inner, inner, config.kernel, config.dilation, config.causal)
        self.widen = Linear(inner, config.d_model, residual=True)

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        rows = RightPadded.from_tokens(tokens)
        entry = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        x = F.relu(self.norm_before(self.narrow(F.relu(rows.x))))
        x, window = self.conv(_blank(rows, x), entry.get("window"))
        if window is not None:
            entry["window"] = window
        x = self.widen(F.relu(self.norm_after(x)))
        return self.taps.record("output", rows.restore(x), tokens.packing)


@dataclass(frozen=True, kw_only=True)
class DotAttentionConfig(Settings):
    d_model: int
    d_context: int


class DotAttention(nn.Module):
    """ConvS2S's attention (Gehring et al. 2017, §3.3): one head, unscaled dot products, no projection of keys and
    values.

    Queries are W h + b + g and values z + e, where g and e are the `pos_embed` of target and source: their input
    embeddings. The result for m source tokens is scaled by √m (§3.5).
    """

    tap_points = ("weights", "output")
    crosses = True

    def __init__(self, config: DotAttentionConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = False
        self.query = Linear(config.d_model, config.d_context)
        self.out = Linear(config.d_context, config.d_model, residual=True)

    def forward(self, tokens: Tokens, memory: Tokens, cache: Cache | None = None) -> Tensor:
        here, source = tokens.pad(), memory.pad()
        assert here.pos_embed is not None and source.pos_embed is not None
        query = (self.query(here.x) + here.pos_embed).unsqueeze(1)
        key, value = source.x.unsqueeze(1), (source.x + source.pos_embed).unsqueeze(1)
        mask: Mask = NO_MASK if source.mask is None else Padding(source.mask)
        weights = None
        if self.taps.is_watched("weights"):
            weights = self.taps.record("weights", attention_weights(query, key, mask, scale=1.0))
        found = attend(query, key, value, mask, scale=1.0, weights=weights).squeeze(1)
        if source.mask is None:
            found = found * source.x.shape[1] ** 0.5
        else:
            found = found * source.mask.sum(dim=1).to(found.dtype).sqrt().view(-1, 1, 1)
        found = found if tokens.packing is None else tokens.packing.pack(found)
        return self.taps.record("output", self.out(found), tokens.packing)


@dataclass(frozen=True, kw_only=True)
class PositionalCrossInputConfig(Settings):
    d_model: int
    d_context: int


class PositionalCrossInput(nn.Module):
    """The source's token at the same position (ByteNet stacks its decoder on its encoder); zeros past the source's
    end."""

    tap_points = ("output",)
    crosses = True

    def __init__(self, config: PositionalCrossInputConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = False
        self.out = Linear(config.d_context, config.d_model, bias=False)

    def forward(self, tokens: Tokens, memory: Tokens, cache: Cache | None = None) -> Tensor:
        rows, source = RightPadded.from_tokens(tokens), RightPadded.from_tokens(memory)
        entry = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        places, count = positions_in_row(rows, entry.get("count"))
        entry["count"] = count
        beyond = places >= source.sizes[:, None]
        at = places.clamp(max=source.x.shape[1] - 1).unsqueeze(-1).expand(-1, -1, source.x.shape[2])
        found = source.x.gather(1, at).masked_fill(beyond.unsqueeze(-1), 0.0)
        return self.taps.record("output", rows.restore(self.out(found)), tokens.packing)


def positions_in_row(rows: RightPadded, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Position of each token in its row [B, T] after `before` [B] earlier tokens, and the new token counts [B]."""
    sizes = rows.sizes
    start = torch.zeros_like(sizes) if before is None else before
    return start[:, None] + torch.arange(rows.x.shape[1], device=rows.x.device), start + sizes


@dataclass(frozen=True, kw_only=True)
class TokenMixingConfig(Settings):
    d_model: int
    length: int  # the fixed length of the weights; shorter rows use their upper left corner
    activation: str = "gelu"
    causal: bool = True


class TokenMixing(nn.Module):
    """A fully connected network over positions, the same for every feature (Tolstikhin et al. 2021): it connects all
    pairs of positions in one layer, for a fixed length. If causal, each matrix is lower triangular."""

    tap_points = ("output",)
    crosses = False

    def __init__(self, config: TokenMixingConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache, self.max_length = config.causal, config.length  # can decode up to this length
        self.first, self.second = (nn.Parameter(torch.empty(config.length, config.length)) for _ in range(2))
        self.first_bias, self.second_bias = (nn.Parameter(torch.empty(config.length)) for _ in range(2))
        self.activation = ACTIVATIONS[config.activation]

    def reset(self, std: float) -> None:
        for weight in (self.first, self.second):
            nn.init.normal_(weight, std=weight.shape[0] ** -0.5)
        for bias in (self.first_bias, self.second_bias):
            nn.init.zeros_(bias)

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        rows = RightPadded.from_tokens(tokens)
        entry = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        places, count = positions_in_row(rows, entry.get("count"))
        longest, length = int(count.max()), self.config.length
        if longest > length:
            raise InputError(f"A row has {longest} tokens, but the model supports at most {length}.")
        real = rows.real
        # Slot `length` takes the padding.
        places = places.clamp(max=length) if real is None else places.masked_fill(~real, length)
        inputs, x = self._layer(self.first, self.first_bias, rows.x, places, entry.get("inputs"))
        hidden, x = self._layer(self.second, self.second_bias, self.activation(x), places, entry.get("hidden"))
        entry.update(count=count, inputs=inputs, hidden=hidden)
        return self.taps.record("output", rows.restore(x), tokens.packing)

    def _layer(
        self, weight: Tensor, bias: Tensor, x: Tensor, places: Tensor, before: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return all inputs so far at their positions [B, length + 1, d], and the outputs at the new positions [B, T,
        d]."""
        length = self.config.length
        slots = before if before is not None else x.new_zeros(x.shape[0], length + 1, x.shape[2])
        slots = slots.scatter(1, places.unsqueeze(-1).expand_as(x), x)
        weight = weight.tril() if self.config.causal else weight
        asked = places.clamp(max=length - 1)
        return slots, weight[asked] @ slots[:, :length] + bias[asked].unsqueeze(-1)
