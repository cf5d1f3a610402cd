"""Projection between stages of different widths."""

from __future__ import annotations

from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.inputs.base import Input


class ProjectedInput(Input):
    """The tokens of the stage `source`, projected to the width of the next stage."""

    def __init__(self, source: str, d_source: int, d_model: int) -> None:
        super().__init__()
        self.source = source
        self.project = Linear(d_source, d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        tokens = run.tokens[self.source]
        return tokens.replace(self.project(tokens.x))
