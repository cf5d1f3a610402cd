"""A last block that computes only the tokens that are read: those of a class, at the front."""

from __future__ import annotations

from anyformer.core.attention import Attention
from anyformer.core.block import Block, Sublayer
from anyformer.core.cache import Cache
from anyformer.core.feedforward import FeedForward
from anyformer.core.norms import MaskedBatchNorm1d
from anyformer.core.tokens import Tokens
from anyformer.fast.device import is_hooked
from anyformer.fast.residual import settle


class FirstTokensBlock(Block):
    """Attention of the first tokens to all, then what is done to each of them alone; all tokens while a tap or a hook
    watches."""

    n_first = 1

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tokens:  # type: ignore[override]
        if self.taps.watched or cache is not None or not self.narrows(tokens):
            return super().forward(tokens, memory, cache)
        attention, *rest = self.active(memory)
        source = attention.read(tokens)
        tokens = settle(tokens).first(self.n_first)
        y = attention.part(source.first(self.n_first), source=source)
        tokens = attention.add(tokens, attention.finish(y, tokens))
        for sublayer in rest:
            tokens = sublayer.add(tokens, sublayer(tokens))
        return tokens

    def narrows(self, tokens: Tokens) -> bool:
        """Whether the first tokens can be computed alone, with the same numbers."""
        plain = tokens.mask is None and tokens.packing is None and tokens.pos_embed is None and tokens.encoding is None
        drops = self.training and any(_drops(sublayer) for sublayer in self.sublayers.values())
        return plain and not drops and not any(is_hooked(module) for module in self.modules())


def fits(block: Block) -> bool:
    """Plain attention among the tokens, then networks that take each token by itself."""
    attention, *rest = block.sublayers.values()
    if block.parallel or any(isinstance(s.norm, MaskedBatchNorm1d) for s in block.sublayers.values()):
        return False
    part = attention.part
    plain = type(part) is Attention and not part.crosses and not part.config.mask.parts
    return plain and all(isinstance(sublayer.part, FeedForward) for sublayer in rest)


def _drops(sublayer: Sublayer) -> bool:
    return bool(sublayer.dropout or sublayer.part.config.dropout)  # type: ignore[union-attr]
