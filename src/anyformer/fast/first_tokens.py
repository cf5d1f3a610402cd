"""A last block that computes only the tokens that the heads read: those of a class, at the front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.core.attention import Attention
from anyformer.core.block import Block, Sublayer
from anyformer.core.cache import Cache
from anyformer.core.feedforward import FeedForward
from anyformer.core.norms import MaskedBatchNorm1d
from anyformer.core.tokens import Tokens
from anyformer.fast.device import is_hooked
from anyformer.fast.residual import settle


@dataclass(eq=False)
class Readers:
    """The heads that read a stage. They are looked up at each pass, since they may be replaced."""

    model: Any
    stage: str

    def n_first(self) -> int | None:
        """Number of tokens at the front that the heads read; None if they read all, or if a hook after the last block
        sees all."""
        stack = self.model.stages[self.stage].stack
        if any(module is not None and is_hooked(module) for module in (stack, stack.final_norm)):
            return None
        counts = [head.n_first for head in self.model.heads.values() if head.stage == self.stage]
        return None if not counts or None in counts else max(counts)


class FirstTokensBlock(Block):
    """A block that attends from the first tokens to all, and transforms only the first tokens. It computes all tokens
    if a tap or a hook watches."""

    _readers: Readers

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tokens:  # type: ignore[override]
        n = None if self.taps.watched or cache is not None else self._readers.n_first()
        if n is None or not self.narrows(tokens):
            return super().forward(tokens, memory, cache)
        attention, *rest = self.active(memory)
        source = attention.read(tokens)
        tokens = settle(tokens)
        tokens = Tokens(tokens.x[:, :n], grid=tokens.grid)
        y = attention.part(Tokens(source.x[:, :n], grid=source.grid), source=source)
        tokens = attention.add(tokens, attention.finish(y, tokens))
        for sublayer in rest:
            tokens = sublayer.add(tokens, sublayer(tokens))
        return tokens

    def narrows(self, tokens: Tokens) -> bool:
        """Whether the first tokens can be computed alone with the same numbers."""
        plain = tokens.mask is None and tokens.packing is None and tokens.pos_embed is None and tokens.encoding is None
        drops = self.training and any(_drops(sublayer) for sublayer in self.sublayers.values())
        return plain and not drops and not any(is_hooked(module) for module in self.modules())


def fits(block: Block) -> bool:
    """Whether the block is plain self-attention followed by networks that process each token separately."""
    attention, *rest = block.sublayers.values()
    if block.parallel or any(isinstance(s.norm, MaskedBatchNorm1d) for s in block.sublayers.values()):
        return False
    part = attention.part
    plain = type(part) is Attention and not part.crosses and not part.config.mask.parts
    return plain and all(isinstance(sublayer.part, FeedForward) for sublayer in rest)


def _drops(sublayer: Sublayer) -> bool:
    return bool(sublayer.dropout or sublayer.part.config.dropout)  # type: ignore[union-attr]
