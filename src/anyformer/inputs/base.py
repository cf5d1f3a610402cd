"""Base class of inputs."""

from __future__ import annotations

from torch import nn

from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext


class Input(nn.Module):
    """Turns the caller's batch into Tokens. `names` are its keywords, the main one first."""

    names: tuple[str, ...] = ()
    mask_name: str | None = None  # the keyword of the padding mask
    asides: tuple[str, ...] = ()  # further keywords that `generate` passes with the ids
    limit: int | None = None  # maximum number of positions; None: any
    window: int | None = None  # of audio: the fixed number of frames

    def forward(self, run: ForwardContext) -> Tokens:
        raise TypeError("an input must define forward")
