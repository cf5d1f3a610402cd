"""CTC head over the columns of a text line, as an auxiliary loss (Graves et al. 2006)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import IGNORED, ForwardContext
from anyformer.heads.base import Head


class CTCHead(Head):
    """`ctc_loss`: `weight` times the CTC loss per letter; the padding id is the blank."""

    names = ("labels",)

    def __init__(self, d_model: int, vocab_size: int, stage: str, blank: int, end: int, weight: float) -> None:
        super().__init__(stage)
        self.blank, self.end, self.weight = blank, end, weight
        self.letters = Linear(d_model, vocab_size)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        labels = run.tensor("labels")
        if labels is None:
            return {}
        loss = self.weight * self.loss(run, labels)
        return {"loss": loss, "ctc_loss": loss}

    def loss(self, run: ForwardContext, labels: Tensor) -> Tensor:
        tokens = run.tokens[self.stage].pad()
        logprobs = F.log_softmax(self.letters(tokens.x).float(), dim=-1).transpose(0, 1)  # [T, B, V]
        mask = tokens.mask
        columns = torch.full((logprobs.shape[1],), logprobs.shape[0], device=labels.device)
        columns = columns if mask is None else mask.sum(dim=1)
        is_letter = (labels != IGNORED) & (labels != self.end)
        sizes = is_letter.sum(dim=1)
        order = torch.argsort((~is_letter).long(), dim=1, stable=True)
        targets = labels.gather(1, order).clamp(min=0)
        each = F.ctc_loss(logprobs, targets, columns, sizes, self.blank, reduction="none", zero_infinity=True)
        return each.sum() / sizes.sum().clamp(min=1)
