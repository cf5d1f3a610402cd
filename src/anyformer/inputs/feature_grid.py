"""Feature grid of a ResNet as projected tokens, with positions and an initial state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from anyformer.core.linear import Linear
from anyformer.core.positions import LearnedGrid
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.inputs.backbone import FeatureInput
from anyformer.inputs.base import Input
from anyformer.layers.resnet import ResNetConfig


class FeatureGridInput(Input):
    """`positions` are added to the cells, for stacks without positions of their own. `n_states`: the number of vectors
    predicted from the image's mean, as initial state of a recurrent decoder (Vinyals et al. 2015).
    """

    names = ("pixel_values",)

    def __init__(
        self,
        resnet: ResNetConfig,
        d_model: int,
        positions: LearnedGrid | None = None,
        n_states: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.features = FeatureInput(resnet)
        self.project = Linear(resnet.d_out, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.positions, self.dropout, self.d_model = positions, dropout, d_model
        self.states = Linear(d_model, n_states * d_model) if n_states else None

    def forward(self, run: ForwardContext) -> Tokens:
        tokens = self.features(run)
        x = self.norm(self.project(tokens.x))
        assert tokens.grid is not None
        x = x if self.positions is None else x + self.positions(*tokens.grid)
        summary = None
        if self.states is not None:
            summary = torch.tanh(self.states(x.mean(dim=1))).unflatten(1, (-1, self.d_model))
        return tokens._replace(x=F.dropout(x, self.dropout, self.training), summary=summary)
