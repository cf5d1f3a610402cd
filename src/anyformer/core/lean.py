"""One decoding step through a stack on a GPU, with the kernels of gpu.py between the parts.

The parts are those of every other pass. What differs is how they are joined: the residual stream is carried as a sum
that has not been made yet, `x + pending`, so that making it and normalizing it are one kernel; and at one row norm and
sum go with the products (see Linear).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from torch import Tensor

from anyformer.core.block import Block, Sublayer
from anyformer.core.cache import Cache
from anyformer.core.feedforward import FeedForward
from anyformer.core.gpu import add_norm, can_add_norm
from anyformer.tokens import Tokens

if TYPE_CHECKING:
    from anyformer.core.stack import Stack


class Stream:
    """The tokens on their way: `x + pending`."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens, self.pending = tokens, cast("Tensor | None", None)
        self.one = tokens.x.numel() == tokens.x.shape[-1]

    def settle(self) -> Tokens:
        if self.pending is not None:
            self.tokens, self.pending = self.tokens.replace(self.tokens.x + self.pending), None
        return self.tokens


def step(stack: Stack, tokens: Tokens, memory: Tokens | None, state: Cache) -> Tokens:
    """What `stack` makes of the newest tokens."""
    stream = Stream(tokens)
    for index in stack.order:
        block = cast("Block", stack.blocks[index])
        if block.config.parallel:
            stream.tokens = block(stream.settle(), memory, state)
            continue
        for sublayer in cast("Iterable[Sublayer]", block.sublayers.values()):
            if memory is not None or not sublayer.crosses:
                _pass(stream, sublayer, memory, state)
    norm, x = stack.final_norm, stream.tokens.x
    if norm is not None and stream.pending is not None and can_add_norm(x, norm):
        return stream.tokens.replace(add_norm(x, stream.pending, norm, keep=False)[1])
    last = stream.settle()
    return last if norm is None else last.replace(norm(last.x))


def _pass(stream: Stream, sublayer: Sublayer, memory: Tokens | None, state: Cache) -> None:
    norm, config, tokens = sublayer.norm, sublayer.config, stream.tokens
    plain = config.residual and config.scale == 1.0 and norm is not None and can_add_norm(tokens.x, norm)
    if not plain or config.order == "sandwich" or config.layer_scale is not None or norm is None:
        stream.tokens = sublayer(stream.settle(), memory, state)
    elif config.order == "post":
        tokens = stream.settle()
        made = _part(sublayer, tokens, memory, state)
        stream.tokens = tokens.replace(add_norm(tokens.x, made, norm, keep=False)[1])
    elif stream.one:
        stream.tokens = tokens.replace(_whole(sublayer, stream.settle(), memory, state))
    elif stream.pending is None:
        stream.pending = _part(sublayer, tokens.replace(norm(tokens.x)), memory, state)
    else:
        total, normed = add_norm(tokens.x, stream.pending, norm)
        stream.tokens = tokens.replace(total)
        stream.pending = _part(sublayer, tokens.replace(normed), memory, state)


def _part(sublayer: Sublayer, tokens: Tokens, memory: Tokens | None, state: Cache) -> Tensor:
    if isinstance(sublayer.part, FeedForward):
        return cast("Tensor", sublayer.part(tokens.x))
    return cast("Tensor", sublayer.part(tokens, sublayer.context(memory), state))


def _whole(sublayer: Sublayer, tokens: Tokens, memory: Tokens | None, state: Cache) -> Tensor:
    """Norm, part and sum at once."""
    if isinstance(sublayer.part, FeedForward):
        return cast("Tensor", sublayer.part(tokens.x, None, sublayer.norm, tokens.x))
    return cast("Tensor", sublayer.part(tokens, sublayer.context(memory), state, sublayer.norm, tokens.x))
