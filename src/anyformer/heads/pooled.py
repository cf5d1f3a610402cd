"""Classification and embedding heads on pooled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.heads.classify import Problem, class_answer, first_token, mean_token

Pooling = Literal["first", "mean", "pair"]


def pool(tokens: Tokens, how: Pooling) -> Tensor:
    """Pool to [B, d]: the first token, or the mean of all real tokens or of the first two (class, distillation)."""
    if how == "pair":
        return tokens.pad().x[:, :2].mean(dim=1)
    return mean_token(tokens) if how == "mean" else first_token(tokens)


@dataclass(frozen=True, kw_only=True)
class PooledConfig(Settings):
    d_model: int
    n_labels: int
    stage: str
    pooling: Pooling = "mean"
    d_pool: int | None = None  # width of a projection before pooling
    norm: NormConfig | None = None  # after pooling
    activation: str | None = None  # after the norm
    problem: Problem | None = None


class PooledClassificationHead(Head):
    """Classifier on pooled tokens, normalized if the family does that."""

    names = ("labels",)

    def __init__(self, config: PooledConfig) -> None:
        super().__init__(config.stage)
        self.config = config
        width = config.d_pool if config.d_pool is not None else config.d_model
        self.project = Linear(config.d_model, width) if config.d_pool is not None else None
        self.norm = make_norm(config.norm, width) if config.norm is not None else None
        self.classes = Linear(width, config.n_labels) if config.n_labels > 0 else None

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage]
        tokens = tokens if self.project is None else tokens.replace(self.project(tokens.x))
        x = pool(tokens, self.config.pooling)
        x = x if self.norm is None else self.norm(x)
        x = x if self.config.activation is None else ACTIVATIONS[self.config.activation](x)
        logits = x if self.classes is None else self.classes(x)
        return class_answer(run, logits, self.config.problem)


class PooledEmbeddingHead(Head):
    """Returns `last_hidden_state`, and the pooled tokens as `pooler_output`."""

    def __init__(self, stage: str, pooling: Pooling) -> None:
        super().__init__(stage)
        self.pooling: Pooling = pooling

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        pooled = pool(run.tokens[self.stage], self.pooling)
        return {"last_hidden_state": run.padded(self.stage), "pooler_output": pooled}
