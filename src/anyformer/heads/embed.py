"""Embedding heads: token vectors and a pooled vector."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.heads.pooling import POOLS, PooledHead, PoolerConfig, PoolingConfig


class EmbeddingHead(PooledHead):
    """Returns `last_hidden_state` and, with a pooling or a dense layer over the first token, `pooler_output`."""

    def __init__(self, stage: str, pool: PoolerConfig | PoolingConfig | None = None) -> None:
        self.pools = pool is not None
        if not isinstance(pool, PoolingConfig):
            width = pool.d_model if pool is not None else 1  # which nothing reads
            pool = PoolingConfig(d_model=width, stage=stage, pool=pool)
        super().__init__(pool)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        fields = {"last_hidden_state": run.padded(self.stage)}
        return {**fields, "pooler_output": self.summary(run)} if self.pools else fields


class FeatureMapHead(Head):
    """The features of an image as rows and columns: `last_hidden_state` [B, d, rows, columns], and their mean,
    `pooler_output` [B, d, 1, 1]."""

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage]
        assert tokens.grid is not None
        features = tokens.x.transpose(1, 2).unflatten(2, tokens.grid)
        return {"last_hidden_state": features, "pooler_output": features.mean(dim=(2, 3), keepdim=True)}


SENTENCE_POOLS = {"cls": POOLS["first"], "max": POOLS["max"], "mean": POOLS["mean"]}


class SentenceEmbeddingHead(Head):
    """`sentence_embedding`: one or several poolings of the tokens, concatenated; unit length if `normalize`."""

    of_task = True

    def __init__(self, stage: str, pools: tuple[str, ...] = ("mean",), normalize: bool = False) -> None:
        super().__init__(stage)
        self.pools, self.normalize = pools, normalize

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        vectors = torch.cat([SENTENCE_POOLS[name](run.tokens[self.stage]) for name in self.pools], dim=-1)
        return {"sentence_embedding": F.normalize(vectors, dim=-1) if self.normalize else vectors}
