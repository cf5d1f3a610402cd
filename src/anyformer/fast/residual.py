"""Residual sums fused with the operations before or after them, for captured decode steps and compiled training on a
GPU.

Between sublayers the residual stream is a `Pending` sum: the next norm computes sum and norm in one kernel. For a
single row, the norm is fused with the product after it, and the sum with the product before it. Block and Stack are
unchanged: the order of sublayers is defined once, in the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from anyformer.core.attention import Attention
from anyformer.core.block import Block, Sublayer
from anyformer.core.cache import Cache
from anyformer.core.feedforward import FeedForward
from anyformer.core.linear import Linear
from anyformer.core.stack import Stack
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.core.wrapper import innermost
from anyformer.fast.device import is_hooked
from anyformer.fast.swap import plain_class
from anyformer.layers.wrappers import FinalDropoutStack, NormedStack, RefiningStack


class Kernels(NamedTuple):
    """The kernels of decoding or training; tests pass plain functions."""

    can_add_norm: Callable[[Tensor, nn.Module], bool]
    add_norm: Callable[[Tensor, Tensor, nn.Module], tuple[Tensor, Tensor]]  # x + y, norm(x + y)
    # (x, weight, bias, norm, activation, add) -> act(W norm(x) + b) + add at one row, and whether that can be done
    linear: Callable[..., Tensor] | None = None
    can_linear: Callable[..., bool] | None = None
    # add_norm for a sum that no other operation reads
    norm_of_sum: Callable[[Tensor, Tensor, nn.Module], tuple[Tensor, Tensor]] | None = None


@dataclass(slots=True)
class Pending:
    """The sum x + y, not yet computed."""

    x: Tensor
    y: Tensor
    kernels: Kernels
    total: Tensor | None = None

    def normed(self, norm: nn.Module) -> Tensor:
        self.total, out = self.kernels.add_norm(self.x, self.y, norm)
        return out


class Summed(NamedTuple):
    """A contribution that already includes the residual stream."""

    x: Tensor


def settle(tokens: Tokens) -> Tokens:
    """Return the tokens with their pending sum computed."""
    x: Any = tokens.x
    if not isinstance(x, Pending):
        return tokens
    if x.total is None:
        x.total = x.x + x.y
    return tokens.replace(x.total)


def can_norm(tokens: Tokens, norm: nn.Module | None) -> bool:
    x: Any = tokens.x
    return isinstance(x, Pending) and norm is not None and x.kernels.can_add_norm(x.x, norm)


class FusedSublayer(Sublayer):
    kernels: Kernels  # set with the class

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Any:  # type: ignore[override]
        if not self._takes_row(tokens):
            return super().forward(tokens, memory, cache)
        tokens = settle(tokens)
        if plain_class(self.part) is Attention:
            return Summed(self._attention(cast("Attention", self.part), tokens, memory, cache))
        part = cast("FeedForward", self.part)
        return Summed(self._product(self._hidden(part, tokens.x), part.down, add=tokens.x))

    def _takes_row(self, tokens: Tokens) -> bool:
        """Whether norm and sum are fused with the products."""
        can, x = self.kernels.can_linear, tokens.x.x if isinstance(tokens.x, Pending) else tokens.x
        plain = self.order == "pre" and self.norm is not None and not self.training
        plain = plain and self.layer_scale is None and self.post_norm is None
        if can is None or not plain or x.numel() != x.shape[-1] or self._watched:
            return False
        if plain_class(self.part) not in (Attention, FeedForward):
            return False
        names = ("qkv", "query", "kv", "gate_up", "up", "down", "out")
        layers = {name: getattr(self.part, name) for name in names if hasattr(self.part, name)}
        # A layer may have been replaced by a tool, for example with an adapter.
        if not all(isinstance(layer, Linear) for layer in layers.values()):
            return False
        ends = {"up": self.part.config.activation} if "up" in layers else {}  # type: ignore[union-attr]
        return all(can(x, layer.weight, self.norm, ends.get(name)) for name, layer in layers.items())

    @property
    def _watched(self) -> bool:
        """Whether taps watch the model: then sums and products are computed separately."""
        return bool(getattr(innermost(self.part), "taps", NO_TAPS).watched)

    def _product(
        self,
        x: Tensor,
        linear: Linear,
        norm: nn.Module | None = None,
        activation: str | None = None,
        add: Tensor | None = None,
    ) -> Tensor:
        compute = self.kernels.linear
        assert compute is not None
        return compute(x, linear.weight, linear.bias, norm, activation, add)

    def _attention(self, part: Attention, tokens: Tokens, memory: Tokens | None, cache: Cache | None) -> Tensor:
        source = memory if part.crosses else None
        query: Tensor
        key: Tensor | None
        value: Tensor | None
        if part.crosses or tokens.pos_embed is not None:
            normed = self.read(tokens)
            query, key, value = part.project(normed, normed if source is None else source, cache)
        else:
            query, key, value = part.split(self._product(tokens.x, part.qkv, self.norm))
        return self._product(part.mix(query, key, value, tokens, source, cache), part.out, add=tokens.x)

    def _hidden(self, part: FeedForward, x: Tensor) -> Tensor:
        if not part.config.gated:
            return self._product(x, part.up, self.norm, part.config.activation)
        gate, up = self._product(x, part.gate_up, self.norm).chunk(2, dim=-1)
        return part.activation(gate) * up

    def read(self, tokens: Tokens) -> Tokens:
        if self.order != "post" and can_norm(tokens, self.norm):
            return tokens.replace(tokens.x.normed(self.norm))  # type: ignore[attr-defined]
        return super().read(settle(tokens))

    def add(self, tokens: Tokens, y: Any) -> Tokens:
        if isinstance(y, Summed):
            return tokens.replace(y.x)
        tokens = settle(tokens)
        if self.order == "post" and self.norm is not None:
            if self.kernels.can_add_norm(tokens.x, self.norm):
                compute = self.kernels.norm_of_sum or self.kernels.add_norm
                return tokens.replace(compute(tokens.x, y, self.norm)[1])
            return super().add(tokens, y)
        if self._watched:
            return super().add(tokens, y)
        return tokens.replace(Pending(tokens.x, y, self.kernels))  # type: ignore[arg-type]


class SettlingBlock(Block):
    """A block that is not fused in a stack with fused blocks: it computes pending sums first."""

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tokens:  # type: ignore[override]
        return super().forward(settle(tokens), memory, cache)


class FusedStack(Stack):
    def forward(self, *given: Any, **named: Any) -> tuple[Tokens, list[Tokens]]:
        last, hidden = super().forward(*given, **named)
        return last, [settle(one) for one in hidden]

    def finish(self, tokens: Tokens) -> Tokens:
        if can_norm(tokens, self.final_norm):
            return tokens.replace(tokens.x.normed(self.final_norm))  # type: ignore[attr-defined]
        return super().finish(settle(tokens))

    def recomputed(self, block: nn.Module, tokens: Tokens, memory: Tokens | None) -> Tokens:
        return super().recomputed(block, settle(tokens), memory)


class FusedFinalDropoutStack(FinalDropoutStack, FusedStack):
    pass


class FusedNormedStack(NormedStack, FusedStack):
    pass


class FusedRefiningStack(RefiningStack, FusedStack):
    pass


FUSED: dict[type[nn.Module], type[FusedStack]] = {
    Stack: FusedStack,
    FinalDropoutStack: FusedFinalDropoutStack,
    NormedStack: FusedNormedStack,
    RefiningStack: FusedRefiningStack,
}


def fused(model: nn.Module) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    """Pairs for `swapped`: stacks of plain blocks without hooks. Sublayers of other classes and parallel blocks are not
    fused."""
    stacks = [module for module in model.modules() if isinstance(module, Stack) and type(module) in FUSED]
    for stack in stacks:
        blocks = list(stack.blocks)
        if any(is_hooked(module) for module in stack.modules()):
            continue
        if not all(isinstance(block, Block) and plain_class(block) is Block for block in blocks):
            continue
        yield stack, FUSED[type(stack)]
        for block in blocks:
            sublayers = list(block.sublayers.values())  # type: ignore[operator]
            if not block.parallel and all(type(sublayer) is Sublayer for sublayer in sublayers):
                yield from ((sublayer, FusedSublayer) for sublayer in sublayers)
            elif type(block) is Block:
                yield block, SettlingBlock
