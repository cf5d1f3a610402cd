"""A label for every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.heads.base import Head, labels_at_padding, per_token, token_loss
from anyformer.run import Run


@dataclass(frozen=True, kw_only=True)
class TagConfig(Settings):
    d_model: int
    n_labels: int
    reads: str
    dropout: float = 0.0


class TagHead(Head):
    names = ("labels",)

    def __init__(self, config: TagConfig) -> None:
        super().__init__(config.reads)
        self.config = config
        self.classes = Linear(config.d_model, config.n_labels)

    def forward(self, run: Run) -> dict[str, Any]:
        tokens = run.tokens[self.reads]
        logits = self.classes(F.dropout(tokens.x, self.config.dropout, self.training))
        labels = run.tensor("labels")
        result = {} if labels is None else {"loss": token_loss(tokens, logits, labels)}
        return {**result, "logits": per_token(tokens, logits)}

    def asks_padding(self, run: Run, mask: Tensor) -> bool:
        return labels_at_padding(run.tensor("labels"), mask)
