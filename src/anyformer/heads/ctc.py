"""What a line says, read column by column: a second opinion that teaches where letters stand (Graves et al. 2006)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import IGNORED, Head


class CTCHead(Head):
    """`ctc_loss`, `weight` times the mean a letter: the chance of the text over all ways to spread it over the columns,
    the padding id standing for "nothing new"."""

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
        chances = F.log_softmax(self.letters(tokens.x).float(), dim=-1).transpose(0, 1)  # [T, B, V]
        mask = tokens.mask
        columns = torch.full((chances.shape[1],), chances.shape[0], device=labels.device)
        columns = columns if mask is None else mask.sum(dim=1)
        spoken = (labels != IGNORED) & (labels != self.end)
        sizes = spoken.sum(dim=1)
        order = torch.argsort((~spoken).long(), dim=1, stable=True)
        targets = labels.gather(1, order).clamp(min=0)
        each = F.ctc_loss(chances, targets, columns, sizes, self.blank, reduction="none", zero_infinity=True)
        return each.sum() / sizes.sum().clamp(min=1)
