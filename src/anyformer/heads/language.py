"""Language modeling head: logits of the next or masked token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.score import soft_cap
from anyformer.core.tokens import Tokens
from anyformer.forward_context import IGNORED, ForwardContext
from anyformer.heads.base import Head, labels_at_padding, padded_token_values
from anyformer.heads.cross_entropy import mean_token_loss
from anyformer.inputs.text import Embedding


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Settings):
    d_model: int
    vocab_size: int
    stage: str
    d_words: int | None = None  # width of the embedding table; None: d_model
    scale: float = 1.0  # factor of the hidden states
    shift: bool = False  # the token at t predicts the label at t+1
    bias: bool = False
    fixed_bias: bool = False  # a bias that is not trained (Marian's final_logits_bias)
    transform: str | None = None  # BERT: dense layer, this activation and norm before the output projection
    transform_bias: bool = True  # of that dense layer
    norm: NormConfig = NormConfig()
    soft_cap: float | None = None  # logits stay between -cap and cap (Gemma 2)
    field: str = "logits"
    keep: bool = False  # accepts logits_to_keep
    seen: int = 0  # first tokens that see each other, so that the labels among them say nothing (a prefix mask)
    prefixed: bool = False  # labels cover the text only, which has a prefix


class LanguageHead(Head):
    """Projects to the vocabulary; `words` is the input embedding, if its weights are tied (Press and Wolf 2017)."""

    def __init__(self, config: LanguageConfig, words: Embedding | None = None) -> None:
        super().__init__(config.stage)
        self.config = config
        self.names = ("labels", "logits_to_keep") if config.keep else ("labels",)
        width = config.d_words if config.d_words is not None else config.d_model
        self.dense = Linear(config.d_model, width, config.transform_bias) if config.transform else None
        self.norm = make_norm(config.norm, width) if config.transform else None
        self.words = Linear(width, config.vocab_size, bias=False)
        if words is not None:
            self.words.weight = words.weight
        self.bias: Tensor | None
        if config.fixed_bias:
            self.register_buffer("bias", torch.zeros(config.vocab_size))
        else:
            self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.bias else None

    def reset(self, std: float) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def score(self, x: Tensor) -> Tensor:
        """The logits of vectors [..., d_model]."""
        logits: Tensor = self(x)
        return logits

    def _score(self, x: Tensor) -> Tensor:
        if self.dense is not None and self.norm is not None:
            x = self.norm(ACTIVATIONS[str(self.config.transform)](self.dense(x)))
        x = x if self.config.scale == 1.0 else x * self.config.scale
        logits = self.words(x, bias=self.bias)
        return logits if self.config.soft_cap is None else soft_cap(logits, self.config.soft_cap)

    def forward(self, run: ForwardContext | Tensor) -> Any:
        if isinstance(run, Tensor):
            return self._score(run)
        tokens = run.tokens[self.stage]
        keep = run.batch.get("logits_to_keep")
        if keep is not None and (isinstance(keep, Tensor) or keep > 0):
            tokens = tokens.pad()
            where = keep if isinstance(keep, Tensor) else slice(-keep, None)
            mask = None if tokens.mask is None else tokens.mask[:, where]
            tokens = Tokens(tokens.x[:, where], mask)
        logits = self._score(tokens.x)
        labels = run.tensor("labels")
        result = {} if labels is None else {"loss": self.loss(tokens, logits, labels)}
        return {**result, self.config.field: padded_token_values(tokens, logits)}

    def loss(self, tokens: Tokens, logits: Tensor, labels: Tensor) -> Tensor:
        targets = self._targets(labels)
        if self.config.prefixed:  # no labels for the prefix
            targets = F.pad(targets, (tokens.x.shape[1] - targets.shape[1], 0), value=IGNORED)
        return mean_token_loss(tokens, logits, targets)

    def _targets(self, labels: Tensor) -> Tensor:
        targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED) if self.config.shift else labels
        return hide_seen(targets, self.config.seen)

    def count(self, labels: Tensor) -> Tensor:
        return super().count(self._targets(labels))

    def needs_padding(self, run: ForwardContext, mask: Tensor) -> bool:
        labels = run.tensor("labels")
        return labels_at_padding(None if labels is None else self._targets(labels), mask)


def hide_seen(targets: Tensor, seen: int) -> Tensor:
    """The labels [B, T] without those of tokens that see the word that they predict: all but the last of `seen`."""
    if seen < 2:
        return targets
    return torch.cat([torch.full_like(targets[:, : seen - 1], IGNORED), targets[:, seen - 1 :]], dim=1)
