"""Base class of heads, and helpers for labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from anyformer.core.host import is_capturing
from anyformer.core.tokens import Tokens
from anyformer.forward_context import IGNORED, ForwardContext


class Head(nn.Module):
    """Base class. A head reads the stage `reads`; `names` are its keywords besides the inputs'.

    `score_field`, for detection heads, is the field with each query's class scores, the last of which is "no object".
    `n_first` is the number of leading tokens that it reads; None: all.
    """

    names: tuple[str, ...] = ()
    may_give: tuple[str, ...] = ()  # fields of the output that depend on settings or inputs, besides the loss of labels
    score_field: str | None = None
    n_first: int | None = None

    of_task: bool = False  # a task puts it on the model and saves what it needs, so no setting of the model names it

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        raise TypeError("a head must define forward")

    def postprocess(self, fields: Mapping[str, Tensor], sizes: Tensor | None) -> dict[str, Tensor]:
        """Return each query's values besides its class [B, queries, …]; `sizes` [B, 2] are image height, width."""
        return {}

    def count(self, labels: Tensor) -> Tensor:
        """How many labels the loss is the mean of."""
        return (labels != IGNORED).sum()

    def needs_padding(self, run: ForwardContext, mask: Tensor) -> bool:
        """Whether the labels need values at padded positions, so that those must be computed."""
        return False


def labels_at_padding(labels: Tensor | None, mask: Tensor) -> bool:
    if labels is None or labels.shape != mask.shape or is_capturing(mask):  # nothing is dropped anyway
        return False
    return bool((labels[~mask] != IGNORED).any())


def padded_token_values(tokens: Tokens, values: Tensor) -> Tensor:
    """Return per-token values in the padded shape, zero at padding."""
    if tokens.packing is not None:
        return tokens.packing.unpack(values)
    return values if tokens.mask is None else values.masked_fill(~tokens.mask.unsqueeze(-1), 0.0)
