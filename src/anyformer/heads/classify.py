"""Heads for whole sequences: classification, regression, multi-label and multiple choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, check_labels
from anyformer.heads.base import Head
from anyformer.heads.pooling import PooledHead, PoolingConfig

Problem = Literal["regression", "single_label_classification", "multi_label_classification"]


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(PoolingConfig):
    n_labels: int  # 0: the head returns the pooled vector
    bias: bool = True
    problem: Problem | None = None  # None: from the number of labels and the dtype of the labels
    field: str = "logits"
    label_name: str = "labels"


class ClassificationHead(PooledHead):
    """A linear classifier of the pooled tokens."""

    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__(config)
        self.names = (config.label_name,)
        self.n_first = 1 if config.pooling == "first" else None
        self.classes = Linear(config.d_out, config.n_labels, config.bias) if config.n_labels > 0 else None

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        x, config = self.summary(run), self.config
        logits = x if self.classes is None else self.classes(x)
        labels = run.tensor(config.label_name)
        loss = {} if labels is None else {"loss": class_loss(logits, labels, config.problem)}
        return {**loss, config.field: logits}


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
