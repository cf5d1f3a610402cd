"""What every input has in common."""

from __future__ import annotations

from torch import nn

from anyformer.forward_context import ForwardContext
from anyformer.tokens import Tokens


class Input(nn.Module):
    """Turns what the caller gives into Tokens. `names` are the keywords it takes, the main one first."""

    names: tuple[str, ...] = ()
    mask_name: str | None = None  # the keyword that says which tokens are real
    asides: tuple[str, ...] = ()  # keywords that say more about the ids and go with them into `generate`
    limit: int | None = None  # the most tokens a row that it has places for; None: any number
    window: int | None = None  # of sound: the frames that it takes at a time, neither more nor fewer

    def forward(self, run: ForwardContext) -> Tokens:
        raise TypeError("an input says what it makes")
