"""Start and end of an extracted answer."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head, padded_token_values


class SpanHead(Head):
    names = ("start_positions", "end_positions")

    def __init__(self, d_model: int, stage: str, dropout: float = 0.0) -> None:
        super().__init__(stage)
        self.dropout = dropout
        self.ends = Linear(d_model, 2)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage]
        logits = self.ends(F.dropout(tokens.x, self.dropout, self.training))
        shown = padded_token_values(tokens, logits)
        fields = {"start_logits": shown[..., 0], "end_logits": shown[..., 1]}
        start, end = run.tensor("start_positions"), run.tensor("end_positions")
        if start is None or end is None:
            return fields
        # Positions outside the window do not count; transformers puts them past the end.
        length = logits.shape[1]
        losses = [
            F.cross_entropy(logits[..., i], places.reshape(-1).clamp(0, length), ignore_index=length)
            for i, places in enumerate((start, end))
        ]
        return {"loss": sum(losses) / 2, **fields}

    def needs_padding(self, run: ForwardContext, mask: Tensor) -> bool:
        """The published loss is a softmax over all positions of a row, including padding."""
        return run.tensor("start_positions") is not None
