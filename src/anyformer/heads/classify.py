"""Heads for whole sequences: classification, regression, multi-label and multiple choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.attend import attention_weights
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK, Padding
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, zero_padding
from anyformer.heads.base import Head, check_labels

Problem = Literal["regression", "single_label_classification", "multi_label_classification"]


@dataclass(frozen=True, kw_only=True)
class PoolerConfig(Settings):
    d_model: int
    d_out: int | None = None
    activation: str = "tanh"


class Pooler(Linear):
    """First token through a dense layer and an activation (BERT's and ViT's pooler)."""

    def __init__(self, config: PoolerConfig) -> None:
        super().__init__(config.d_model, config.d_out if config.d_out is not None else config.d_model)
        self.activation = config.activation

    def forward(self, first: Tensor) -> Tensor:  # type: ignore[override]
        return ACTIVATIONS[self.activation](super().forward(first))


def first_token(tokens: Tokens) -> Tensor:
    """First real token of each row [B, d]; zeros for a row without any."""
    if tokens.packing is not None:
        if not len(tokens.x):
            return tokens.x.new_zeros(tokens.packing.batch, tokens.x.shape[1])
        starts = tokens.packing.starts
        first = starts[:-1].long().clamp(max=len(tokens.x) - 1)
        return tokens.x.index_select(0, first) * (starts.diff() > 0).unsqueeze(-1)
    if tokens.mask is None:
        return tokens.x[:, 0]
    first = tokens.mask.to(torch.int8).argmax(dim=1)
    return tokens.x[torch.arange(len(first), device=first.device), first] * tokens.mask.any(dim=1, keepdim=True)


def mean_token(tokens: Tokens) -> Tensor:
    """Mean of each row's real tokens [B, d]; zeros for a row without any."""
    mask = tokens.packing.mask if tokens.packing is not None else tokens.mask
    if mask is None:
        return tokens.x.mean(dim=1)
    return zero_padding(tokens).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


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
        query = self.query.to(keys.dtype).expand(len(keys), 1, 1, -1)
        mask = NO_MASK if tokens.mask is None else Padding(tokens.mask)
        weights = self.taps.record("weights", attention_weights(query, keys, mask, scale=1.0))
        return (weights @ keys).flatten(1)  # one query: too small for a fused kernel


PoolingMethod = Literal["first", "mean", "attention"]


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(Settings):
    d_model: int
    n_labels: int
    stage: str
    pooling: PoolingMethod = "first"  # pool the first token, or all tokens
    skip: int = 0  # leading tokens left out of the mean
    pool: PoolerConfig | None = None
    input_dropout: float = 0.0  # before pooling
    dropout: float = 0.0
    problem: Problem | None = None  # None: from the number of labels and the dtype of the labels
    field: str = "logits"
    label_name: str = "labels"


class ClassificationHead(Head):
    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__(config.stage)
        self.config = config
        self.names = (config.label_name,)
        self.n_first = 1 if config.pooling == "first" else None
        self.gather = AttentionPool(config.d_model) if config.pooling == "attention" else None
        self.pool = Pooler(config.pool) if config.pool is not None else None
        width = config.pool.d_out if config.pool is not None and config.pool.d_out is not None else config.d_model
        self.classes = Linear(width, config.n_labels) if config.n_labels > 0 else None

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        x = self.summary(run)
        logits = x if self.classes is None else self.classes(x)
        return class_answer(run, logits, self.config.problem, self.config.field, self.config.label_name)

    def summary(self, run: ForwardContext) -> Tensor:
        """Return one vector per row, [B, d]."""
        x = F.dropout(self._gathered(run.tokens[self.stage]), self.config.input_dropout, self.training)
        x = x if self.pool is None else self.pool(x)
        return F.dropout(x, self.config.dropout, self.training)

    def _gathered(self, tokens: Tokens) -> Tensor:
        if self.config.pooling == "first":
            return first_token(tokens)
        if self.config.skip:
            tokens = tokens.pad()
            mask = None if tokens.mask is None else tokens.mask[:, self.config.skip :]
            tokens = Tokens(tokens.x[:, self.config.skip :], mask)
        return mean_token(tokens) if self.gather is None else self.gather(tokens)


def class_loss(logits: Tensor, labels: Tensor, problem: Problem | None = None) -> Tensor:
    """Squared error, cross entropy or binary cross entropy, by transformers' problem_type."""
    n = logits.shape[-1]
    if problem is None:
        whole = not labels.is_floating_point()
        problem = "regression" if n == 1 else "single_label_classification" if whole else "multi_label_classification"
    expected = [logits.shape[0]] if problem == "single_label_classification" or n == 1 else list(logits.shape)
    if labels.numel() != logits.shape[0] * (n if len(expected) == 2 else 1):
        raise InputError(f"labels has shape {list(labels.shape)}; for a {problem} problem it must be {expected}.")
    if problem == "regression":
        return F.mse_loss(logits.squeeze(), labels.squeeze()) if n == 1 else F.mse_loss(logits, labels)
    if problem == "single_label_classification":
        check_labels(labels, n, "labels")
        return F.cross_entropy(logits, labels.view(-1))
    return F.binary_cross_entropy_with_logits(logits, labels)


def class_answer(
    run: ForwardContext, logits: Tensor, problem: Problem | None, field: str = "logits", label_name: str = "labels"
) -> dict[str, Any]:
    """Return the logits and, with labels, the loss."""
    labels = run.tensor(label_name)
    return {**({} if labels is None else {"loss": class_loss(logits, labels, problem)}), field: logits}


class DistillationHead(Head):
    """Two classifiers, of the class token and of the distillation token (DeiT)."""

    names = ("labels",)
    n_first = 2

    def __init__(self, d_model: int, n_labels: int, stage: str) -> None:
        super().__init__(stage)
        self.classes = Linear(d_model, n_labels)
        self.taught = Linear(d_model, n_labels)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        x = run.padded(self.stage)
        own, taught = self.classes(x[:, 0]), self.taught(x[:, 1])
        fields = {"logits": (own + taught) / 2, "cls_logits": own, "distillation_logits": taught}
        labels = run.tensor("labels")
        if labels is None:
            return fields
        return {"loss": (class_loss(own, labels) + class_loss(taught, labels)) / 2, **fields}


class MultipleChoiceHead(ClassificationHead):
    """Scores each of several choices; the model flattens the batch [B, choices, T]."""

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        assert self.classes is not None
        logits = self.classes(self.summary(run)).view(-1, run.batch["choices"])
        labels = run.tensor("labels")
        if labels is None:
            return {"logits": logits}
        check_labels(labels, logits.shape[1], "labels")
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
