"""Token classification: tags, visual tokens of masked patches, and detection of replaced tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, check_labels, check_shape
from anyformer.heads.base import Head, labels_at_padding, padded_token_values
from anyformer.heads.cross_entropy import mean_token_loss


@dataclass(frozen=True, kw_only=True)
class TokenClassificationConfig(Settings):
    d_model: int
    n_labels: int
    stage: str
    dropout: float = 0.0


class TokenClassificationHead(Head):
    names = ("labels",)

    def __init__(self, config: TokenClassificationConfig) -> None:
        super().__init__(config.stage)
        self.config = config
        self.classes = Linear(config.d_model, config.n_labels)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage]
        logits = self.classes(F.dropout(tokens.x, self.config.dropout, self.training))
        labels = run.tensor("labels")
        result = {} if labels is None else {"loss": mean_token_loss(tokens, logits, labels)}
        return {**result, "logits": padded_token_values(tokens, logits)}

    def needs_padding(self, run: ForwardContext, mask: Tensor) -> bool:
        return labels_at_padding(run.tensor("labels"), mask)


class VisualTokenHead(Head):
    """Predicts the visual token of each patch; labels [masked patches] follow the order of bool_masked_pos."""

    names = ("labels",)

    def __init__(self, d_model: int, vocab_size: int, norm: NormConfig, stage: str) -> None:
        super().__init__(stage)
        self.norm = make_norm(norm, d_model)
        self.words = Linear(d_model, vocab_size)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        logits = self.words(self.norm(run.padded(self.stage))[:, 1:])
        labels, covered = run.tensor("labels"), run.tensor("bool_masked_pos")
        if labels is None:
            return {"logits": logits}
        if covered is None or int(covered.sum()) != labels.numel():
            n = 0 if covered is None else int(covered.sum())
            raise InputError(f"labels has {labels.numel()} entries; bool_masked_pos masks {n} patches.")
        check_labels(labels, logits.shape[-1], "labels")
        return {"loss": F.cross_entropy(logits[covered.bool()].float(), labels.flatten()), "logits": logits}


class ReplacedTokenHead(Head):
    """Predicts whether each token was replaced; the loss is over real tokens (ELECTRA's discriminator)."""

    names: tuple[str, ...] = ("labels",)

    def __init__(self, d_model: int, activation: str, stage: str) -> None:
        super().__init__(stage)
        self.dense = Linear(d_model, d_model)
        self.answer = Linear(d_model, 1)
        self.activation = ACTIVATIONS[activation]

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        tokens = run.tokens[self.stage]
        logits = padded_token_values(tokens, self.answer(self.activation(self.dense(tokens.x)))).squeeze(-1)
        labels = run.tensor(self.names[0])
        result = {} if labels is None else self.loss(run, logits, labels)
        return {**result, "logits": logits}

    def loss(self, run: ForwardContext, logits: Tensor, replaced: Tensor) -> dict[str, Tensor]:
        check_shape(replaced, self.names[0], *logits.shape)
        mask = run.tokens[self.stage].pad().mask
        if mask is not None:
            logits, replaced = logits[mask], replaced[mask]
        return {"loss": F.binary_cross_entropy_with_logits(logits.float(), replaced.float())}


class DiscriminatorHead(ReplacedTokenHead):
    """A head beside a generator: its labels are `replaced`, which `ReplacedTokensInput` finds, and its loss is
    multiplied by `weight`."""

    names = ("replaced",)

    def __init__(self, d_model: int, activation: str, stage: str, weight: float) -> None:
        super().__init__(d_model, activation, stage)
        self.weight = weight

    def loss(self, run: ForwardContext, logits: Tensor, replaced: Tensor) -> dict[str, Tensor]:
        loss = super().loss(run, logits, replaced)["loss"]
        return {"loss": self.weight * loss, "discriminator_loss": loss}
