"""Pooling: one vector per row, from its tokens.

A pooled head reads one token or the mean, maximum or weighted mean of tokens, which may pass a projection before and a
norm, a dense layer and dropout after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.attend import attention_weights
from anyformer.core.host import is_capturing
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK, Padding
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, zero_padding
from anyformer.heads.base import Head


def first_token(tokens: Tokens) -> Tensor:
    """First real token of each row [B, d]; zeros for a row without any."""
    if tokens.packing is not None:
        if not len(tokens.x):
            return tokens.x.new_zeros(tokens.packing.batch, tokens.x.shape[1])
        starts = tokens.packing.starts
        first = starts[:-1].long().clamp(max=len(tokens.x) - 1)
        return tokens.x.index_select(0, first) * (starts.diff() > 0).unsqueeze(-1)
    if not tokens.x.shape[1]:
        return tokens.x.new_zeros(tokens.x.shape[0], tokens.x.shape[2])
    if tokens.mask is None:
        return tokens.x[:, 0]
    first = tokens.mask.to(torch.int8).argmax(dim=1)
    return tokens.x[torch.arange(first.shape[0], device=first.device), first] * tokens.mask.any(dim=1, keepdim=True)


def last_token(tokens: Tokens) -> Tensor:
    """Last real token of each row [B, d]; zeros for a row without any."""
    tokens = tokens.pad()
    if tokens.mask is None:
        return tokens.x[:, -1]
    slots = torch.arange(tokens.x.shape[1], device=tokens.x.device)
    last = (slots * tokens.mask).amax(dim=1)
    return tokens.x[torch.arange(last.shape[0], device=last.device), last] * tokens.mask.any(dim=1, keepdim=True)


def mean_token(tokens: Tokens) -> Tensor:
    """Mean of each row's real tokens [B, d]; zeros for a row without any."""
    mask = tokens.packing.mask if tokens.packing is not None else tokens.mask
    if mask is None:
        return tokens.x.mean(dim=1)
    return zero_padding(tokens).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def max_token(tokens: Tokens) -> Tensor:
    """Maximum of each feature over a row's real tokens [B, d]; zeros if it has none."""
    padded = tokens.pad()
    if padded.mask is None:
        return padded.x.amax(dim=1)
    largest = padded.x.masked_fill(~padded.mask.unsqueeze(-1), float("-inf")).amax(dim=1)
    return largest.masked_fill(~padded.mask.any(dim=1, keepdim=True), 0.0)


def mean_of_two(tokens: Tokens) -> Tensor:
    """Mean of the first two tokens of each row, the class and the distillation token."""
    return tokens.pad().x[:, :2].mean(dim=1)


def end_token(tokens: Tokens, ids: Tensor | None, end: int | None) -> Tensor:
    """The token of each row at the last id `end` [B, d]."""
    if ids is None:
        raise InputError("A class is read at the end token, so this model needs input_ids.")
    slots = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    last = (slots * (ids == end)).amax(dim=1) - 1
    if not is_capturing(ids) and bool((last < 0).any()):
        raise InputError(f"A row of input_ids has no end token ({end}), at which a class is read.")
    return tokens.pad().x[torch.arange(last.shape[0], device=last.device), last]


class AttentionPool(nn.Module):
    """Attention pooling with one learned query (SeqPool of Hassani et al. 2021): [B, d]."""

    tap_points = ("weights",)

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, d_model))
        self.taps = NO_TAPS

    def reset(self, std: float) -> None:
        nn.init.normal_(self.query, std=std)

    def forward(self, tokens: Tokens) -> Tensor:
        tokens = tokens.pad()
        keys = tokens.x.unsqueeze(1)  # one head
        query = self.query.to(keys.dtype).expand(keys.shape[0], 1, 1, -1)
        mask = NO_MASK if tokens.mask is None else Padding(tokens.mask)
        weights = self.taps.record("weights", attention_weights(query, keys, mask, scale=1.0))
        return (weights @ keys).flatten(1)  # one query: too small for a fused kernel


def first_and_mean(tokens: Tokens) -> Tensor:
    """First real token beside the mean of the other real ones [B, 2d]."""
    first, padded = first_token(tokens), tokens.pad()
    if padded.mask is None:
        return torch.cat([first, padded.x[:, 1:].mean(dim=1)], dim=-1)
    others = (padded.mask.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return torch.cat([first, (zero_padding(padded).sum(dim=1) - first) / others], dim=-1)


PoolingMethod = Literal["first", "first_mean", "last", "mean", "max", "pair", "attention", "end"]
POOLS: dict[str, Callable[[Tokens], Tensor]] = {
    "first": first_token,
    "first_mean": first_and_mean,
    "last": last_token,
    "mean": mean_token,
    "max": max_token,
    "pair": mean_of_two,
}


@dataclass(frozen=True, kw_only=True)
class PoolerConfig(Settings):
    d_model: int
    d_out: int | None = None
    activation: str = "tanh"
    bias: bool = True
    norm: NormConfig | None = None  # after the activation


class Pooler(Linear):
    """First token through a dense layer and an activation (BERT's and ViT's pooler)."""

    def __init__(self, config: PoolerConfig) -> None:
        d_out = config.d_out if config.d_out is not None else config.d_model
        super().__init__(config.d_model, d_out, config.bias)
        self.activation = config.activation
        self.last_norm = make_norm(config.norm, d_out) if config.norm is not None else None

    def forward(self, first: Tensor) -> Tensor:  # type: ignore[override]
        x = ACTIVATIONS[self.activation](super().forward(first))
        return x if self.last_norm is None else self.last_norm(x)


@dataclass(frozen=True, kw_only=True)
class PoolingConfig(Settings):
    d_model: int
    stage: str
    pooling: PoolingMethod = "first"  # "pair": the mean of the first two tokens; "end": the last one with the id `end`
    end: int | None = None
    skip: int = 0  # leading tokens left out of "mean", "max" and "attention"
    d_project: int | None = None  # width of a projection before pooling
    norm: NormConfig | None = None  # after pooling
    activation: str = "linear"  # after the norm
    pool: PoolerConfig | None = None  # a dense layer after pooling
    input_dropout: float = 0.0  # before it
    dropout: float = 0.0  # after it

    @property
    def d_projected(self) -> int:
        return self.d_project if self.d_project is not None else self.d_model

    @property
    def d_out(self) -> int:
        """Width of the pooled vector."""
        if self.pool is not None and self.pool.d_out is not None:
            return self.pool.d_out
        return self.d_projected * (2 if self.pooling == "first_mean" else 1)


class PooledHead(Head):
    """Base class of heads that read one vector per row."""

    def __init__(self, config: PoolingConfig) -> None:
        super().__init__(config.stage)
        self.config = config
        width = config.d_projected
        self.gather = AttentionPool(width) if config.pooling == "attention" else None
        self.project = Linear(config.d_model, width) if config.d_project is not None else None
        self.norm = make_norm(config.norm, width) if config.norm is not None else None
        self.pool = Pooler(config.pool) if config.pool is not None else None

    def summary(self, run: ForwardContext) -> Tensor:
        """Return one vector per row [B, d]."""
        config, tokens = self.config, run.tokens[self.stage]
        x = self._pooled(run, tokens if self.project is None else tokens.replace(self.project(tokens.x)))
        x = ACTIVATIONS[config.activation](x if self.norm is None else self.norm(x))
        x = F.dropout(x, config.input_dropout, self.training)
        x = x if self.pool is None else self.pool(x)
        return F.dropout(x, config.dropout, self.training)

    def _pooled(self, run: ForwardContext, tokens: Tokens) -> Tensor:
        config = self.config
        if config.pooling == "end":
            return end_token(tokens, run.tensor("input_ids"), config.end)
        if config.skip and config.pooling in ("mean", "max", "attention"):
            tokens = tokens.pad()
            mask = None if tokens.mask is None else tokens.mask[:, config.skip :]
            tokens = Tokens(tokens.x[:, config.skip :], mask)
        return POOLS[config.pooling](tokens) if self.gather is None else self.gather(tokens)
