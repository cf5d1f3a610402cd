"""Embedding heads: token vectors and a pooled vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.heads.classify import Pooler, PoolerConfig, Problem, class_answer, first_token, mean_token


class EmbeddingHead(Head):
    """Returns `last_hidden_state` and, with a pooler, `pooler_output`."""

    def __init__(self, stage: str, pool: PoolerConfig | None = None) -> None:
        super().__init__(stage)
        self.pool = Pooler(pool) if pool is not None else None

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        fields = {"last_hidden_state": run.padded(self.stage)}
        if self.pool is not None:
            fields["pooler_output"] = self.pool(first_token(run.tokens[self.stage]))
        return fields


def max_token(tokens: Tokens) -> Tensor:
    """Maximum of each feature over a row's real tokens [B, d]; zeros if it has none."""
    padded = tokens.pad()
    if padded.mask is None:
        return padded.x.amax(dim=1)
    largest = padded.x.masked_fill(~padded.mask.unsqueeze(-1), float("-inf")).amax(dim=1)
    return largest.masked_fill(~padded.mask.any(dim=1, keepdim=True), 0.0)


POOLS: dict[str, Callable[[Tokens], Tensor]] = {"cls": first_token, "max": max_token, "mean": mean_token}


class SentenceEmbeddingHead(Head):
    """`sentence_embedding`: one or several poolings of the tokens, concatenated; unit length if `normalize`."""

    of_task = True

    def __init__(self, stage: str, pools: tuple[str, ...] = ("mean",), normalize: bool = False) -> None:
        super().__init__(stage)
        self.pools, self.normalize = pools, normalize

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        vectors = torch.cat([POOLS[name](run.tokens[self.stage]) for name in self.pools], dim=-1)
        return {"sentence_embedding": F.normalize(vectors, dim=-1) if self.normalize else vectors}


class MeanClassificationHead(Head):
    """Classifier on the mean of the tokens, without a bias (ImageGPT)."""

    names = ("labels",)

    def __init__(self, stage: str, d_model: int, n_labels: int, problem: Problem | None = None) -> None:
        super().__init__(stage)
        self.classes = Linear(d_model, n_labels, bias=False)
        self.problem = problem

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        return class_answer(run, self.classes(mean_token(run.tokens[self.stage])), self.problem)
