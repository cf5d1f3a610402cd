"""A stage of a model: inputs and the stack that transforms them."""

from __future__ import annotations

from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.core.feedforward import FeedForward
from anyformer.core.host import host_copy, is_capturing
from anyformer.core.stack import Stack
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.core.wrapper import Wrapper
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, to_bool_mask
from anyformer.inputs.base import Input
from anyformer.layers.convolution import TokenMixing

PACK_BELOW = 0.95  # rows are packed if less than this fraction of their tokens is real


class Stage(Wrapper):
    """Inputs and the stack that transforms them. `attends` names the stage that cross-attention reads, `memory` the
    keyword argument that it reads instead.

    With `decodes` False, the stage processes all tokens at once even if it is causal (CLIP's text encoder). With
    `optional`, it is skipped if its first input is not given (the images of a text).
    """

    tap_points = ("input", "output")

    def __init__(
        self,
        name: str,
        inputs: Input,
        stack: Stack | None,
        attends: str | None = None,
        memory: str | None = None,
        decodes: bool = True,
        optional: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.attends, self.memory, self.optional = name, attends, memory, optional
        self.inputs = inputs
        self.stack: Stack | None = None
        if stack is not None:
            self.wrap("stack", stack)
        self.taps = NO_TAPS
        self.names: tuple[str, ...] = (
            (*inputs.names, memory, "encoder_attention_mask") if memory is not None else inputs.names
        )
        parts = [] if stack is None else [part for part in stack.blocks.modules() if hasattr(part, "has_cache")]
        self.has_cache = decodes and any(part.has_cache for part in parts)  # whether it can decode step by step
        # Whether beams can share encoder tokens.
        self.shares = all(isinstance(part, Attention) for part in parts if part.crosses)
        lengths = [part.max_length for part in parts if isinstance(part, TokenMixing)]
        lengths += [inputs.limit] if inputs.limit is not None else []
        self.limit = min(lengths, default=None)  # maximum row length
        self.attends_only = all(isinstance(part, (Attention, FeedForward)) for part in parts)
        # Packing must not change the meaning of masks and positions.
        masks = [mask for part in parts if isinstance(part, Attention) for mask in part.config.mask.parts]
        biased = stack is not None and stack.has_position_bias
        self.packable = not biased and all(mask.relative for mask in masks)

    def is_skipped(self, run: ForwardContext) -> bool:
        return self.optional and run.batch.get(self.inputs.names[0]) is None

    def forward(self, run: ForwardContext, pack: bool = True) -> None:
        cache = run.state if self.has_cache else None
        tokens: Tokens = self.inputs(run)
        memory = self._memory(run)
        if tokens.allowed is not None and not self.attends_only:
            raise InputError("attention_mask has 4 dimensions, but not all layers are attention; give [batch, tokens].")
        if cache is not None:
            cache.advance(tokens.mask, tokens.x.shape[0], tokens.x.shape[1], tokens.x.device)
        elif (
            pack
            and self.packable
            and tokens.spans is None
            and tokens.allowed is None
            and tokens.documents is None
            and (_mostly_padding(tokens) or (memory is not None and memory.packed))
        ):
            tokens = tokens.pack()
        if memory is not None:
            memory = memory.pack() if tokens.packed else memory.pad()
        tokens = self.taps.record_tokens("input", tokens)
        run.layers[self.name] = [tokens]
        if self.stack is not None:
            tokens, layers = self.stack(tokens, memory, cache)
            run.layers[self.name] += layers
        run.tokens[self.name] = self.taps.record_tokens("output", tokens)

    def _memory(self, run: ForwardContext) -> Tokens | None:
        if self.attends is not None:
            return run.tokens[self.attends]
        given = run.tensor(self.memory) if self.memory is not None else None
        return None if given is None else given_embeddings(run, given, "encoder_attention_mask")


def given_embeddings(run: ForwardContext, x: Tensor, mask_name: str) -> Tokens:
    """Tokens from embeddings that the caller gives, with their mask."""
    return Tokens(x, to_bool_mask(run.tensor(mask_name), (x.shape[0], x.shape[1]), mask_name))


def _mostly_padding(tokens: Tokens) -> bool:
    if tokens.mask is None or is_capturing(tokens.mask):
        return False
    return float(host_copy(tokens.mask).sum()) < PACK_BELOW * tokens.mask.numel()
