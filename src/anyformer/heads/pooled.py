"""One answer for a whole sequence, read off a pool of its tokens instead of the first one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.heads.classify import Problem, class_answer, first_token, mean_token
from anyformer.tokens import Tokens

Pooling = Literal["first", "mean", "pair"]


def pool(tokens: Tokens, how: Pooling) -> Tensor:
    """[B, d]: the first token, the mean of all real ones, or that of the first two (a class token and a teacher's)."""
    if how == "pair":
        return tokens.pad().x[:, :2].mean(dim=1)
    return mean_token(tokens) if how == "mean" else first_token(tokens)


@dataclass(frozen=True, kw_only=True)
class PooledConfig(Settings):
    d_model: int
    n_labels: int
    stage: str
    pooling: Pooling = "mean"
    d_pool: int | None = None  # a projection of each token before they are pooled
    norm: NormConfig | None = None  # of what is pooled
    activation: str | None = None  # after the norm
    problem: Problem | None = None


class PooledClassificationHead(Head):
    """`logits` of a pool of tokens, normalized where the family does that."""

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
    """`last_hidden_state`, and as `pooler_output` the pool itself."""

    def __init__(self, stage: str, pooling: Pooling) -> None:
        super().__init__(stage)
        self.pooling: Pooling = pooling

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        pooled = pool(run.tokens[self.stage], self.pooling)
        return {"last_hidden_state": run.padded(self.stage), "pooler_output": pooled}
