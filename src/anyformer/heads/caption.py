"""Words about an image from a writer that looks at it, with a loss on where it looks (Xu et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.core.recurrent import ATTENTION_SUMMARY, AttentionSummary
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import IGNORED
from anyformer.heads.language import LanguageConfig, LanguageHead

FORGETS = 0.9  # of the moving average that rewards are measured against


@dataclass(frozen=True, kw_only=True)
class AttentionLossConfig(Settings):
    """`coverage`: over a caption every place should be looked at once in all ("doubly stochastic", equation 14).
    `reward`, `entropy`: where places are drawn, those before likely captions become likelier, and the choice stays
    open (equation 12)."""

    coverage: float = 1.0
    reward: float = 0.0
    entropy: float = 0.0


class CaptionHead(LanguageHead):
    """As the language head; with labels and a writer that notes where it looked, `attention_loss` too."""

    def __init__(self, config: LanguageConfig, look: AttentionLossConfig) -> None:
        super().__init__(config)
        self.look = look
        self.register_buffer("usual", torch.zeros(()))  # the mean log-probability of a word so far

    def reset(self, std: float) -> None:
        super().reset(std)
        self.get_buffer("usual").zero_()

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        fields = super().forward(run)
        note, labels = run.tokens[self.stage].memo.get(ATTENTION_SUMMARY), run.tensor("labels")
        if labels is None or note is None:
            return fields
        extra = self.attention_loss(note, fields[self.config.field], labels)
        return {**fields, "loss": fields["loss"] + extra, "attention_loss": extra}

    def attention_loss(self, note: AttentionSummary, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over captions, each divided by its words, so that it can be added to the mean over words."""
        counts = (labels != IGNORED).sum(dim=1).clamp(min=1)
        each = self.look.coverage * (1 - note.coverage).square().mean(dim=1)
        if self.look.reward:
            each = each - self.look.reward * self._advantage(logits, labels, counts) * note.log_prob / counts
            each = each - self.look.entropy * note.entropy / counts
        return each.mean()

    def _advantage(self, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """How much likelier each caption was, a word, than captions usually are [B]; no gradient goes through it."""
        flat = F.cross_entropy(
            logits.detach().float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        said = -flat.view(labels.shape).sum(dim=1) / counts
        usual = self.get_buffer("usual")
        advantage = said - usual
        if self.training:
            usual.mul_(FORGETS).add_((1 - FORGETS) * said.mean())
        return advantage
