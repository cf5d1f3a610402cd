"""Heads on the patches behind a class token: their mean, or a visual token for each."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head, check_labels
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, first_token


class PatchSummary(nn.Module):
    """Normalized mean of the patches; without a norm, the class token."""

    def __init__(self, d_model: int, norm: NormConfig | None) -> None:
        super().__init__()
        self.norm = make_norm(norm, d_model) if norm is not None else None

    def forward(self, run: ForwardContext, stage: str) -> Tensor:
        if self.norm is None:
            return first_token(run.tokens[stage])
        mean: Tensor = self.norm(run.tokens[stage].pad().x[:, 1:].mean(dim=1))
        return mean


class PatchEmbeddingHead(Head):
    """Returns `last_hidden_state` and `pooler_output`."""

    def __init__(self, d_model: int, norm: NormConfig | None, stage: str) -> None:
        super().__init__(stage)
        self.pool = PatchSummary(d_model, norm)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        return {"last_hidden_state": run.padded(self.stage), "pooler_output": self.pool(run, self.stage)}


class PatchClassificationHead(ClassificationHead):
    """Image classifier on the mean of the patches."""

    def __init__(self, config: ClassificationConfig, norm: NormConfig | None) -> None:
        super().__init__(config)
        self.average = PatchSummary(config.d_model, norm)
        self.n_first = None  # reads all tokens

    def summary(self, run: ForwardContext) -> Tensor:
        made: Tensor = self.average(run, self.stage)
        return made


class VisualTokenHead(Head):
    """Predicts the visual token of each patch; labels [masked patches] follow the order of bool_masked_pos."""

    names = ("labels",)

    def __init__(self, d_model: int, vocab_size: int, norm: NormConfig, stage: str) -> None:
        super().__init__(stage)
        self.norm = make_norm(norm, d_model)
        self.words = Linear(d_model, vocab_size)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        logits = self.words(self.norm(run.padded(self.stage))[:, 1:])
        labels, covered = run.tensor("labels"), run.tensor("bool_masked_pos")
        if labels is None:
            return {"logits": logits}
        if covered is None or int(covered.sum()) != labels.numel():
            n = 0 if covered is None else int(covered.sum())
            raise InputError(f"labels has {labels.numel()} entries; bool_masked_pos masks {n} patches.")
        check_labels(labels, logits.shape[-1], "labels")
        return {"loss": F.cross_entropy(logits[covered.bool()].float(), labels.flatten()), "logits": logits}
