"""Caption head of a decoder that attends to an image, with a loss on its attention (Xu et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.forward_context import IGNORED, ForwardContext
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.layers.recurrent import AttentionSummary

FORGETS = 0.9  # decay of the moving average that is the reward's baseline


@dataclass(frozen=True, kw_only=True)
class AttentionLossConfig(Settings):
    """`coverage` weights the doubly stochastic loss: attention to each position should sum to one over a caption
    (equation 14). `reward` and `entropy` are for hard attention: REINFORCE on the caption's log-likelihood, and the
    entropy of the choice (equation 12).
    """

    coverage: float = 1.0
    reward: float = 0.0
    entropy: float = 0.0


class CaptionHead(LanguageHead):
    """A language head; with labels and a decoder that records its attention it adds `attention_loss`."""

    def __init__(self, config: LanguageConfig, look: AttentionLossConfig) -> None:
        super().__init__(config)
        self.look = look
        self.register_buffer("usual", torch.zeros(()))  # moving average of the log-probability per token

    def reset(self, std: float) -> None:
        super().reset(std)
        self.get_buffer("usual").zero_()

    def forward(self, run: ForwardContext | Tensor) -> Any:
        fields = super().forward(run)
        if isinstance(run, Tensor):
            return fields
        summary, labels = run.tokens[self.stage].summary, run.tensor("labels")
        if labels is None or summary is None:
            return fields
        extra = self.attention_loss(AttentionSummary.from_tensor(summary), fields[self.config.field], labels)
        return {**fields, "loss": fields["loss"] + extra, "attention_loss": extra}

    def attention_loss(self, note: AttentionSummary, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over captions, each divided by its number of tokens, so that it can be added to the mean over tokens."""
        counts = (labels != IGNORED).sum(dim=1).clamp(min=1)
        each = self.look.coverage * (1 - note.coverage).square().mean(dim=1)
        if self.look.reward:
            each = each - self.look.reward * self._advantage(logits, labels, counts) * note.log_prob / counts
            each = each - self.look.entropy * note.entropy / counts
        return each.mean()

    def _advantage(self, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Log-likelihood per token of each caption minus the moving average [B], without gradient."""
        flat = F.cross_entropy(
            logits.detach().float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        log_likelihood = -flat.view(labels.shape).sum(dim=1) / counts
        baseline = self.get_buffer("usual")
        advantage = log_likelihood - baseline
        if self.training:
            baseline.mul_(FORGETS).add_((1 - FORGETS) * log_likelihood.mean())
        return advantage
